// Two processes that serve and call each other, one of which is killed and started again.

#ifndef VERBENA_BENCHMARKS_LINKS_RESTARTS_H_
#define VERBENA_BENCHMARKS_LINKS_RESTARTS_H_

#include <string>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {

// Adds a row `restart`: the time from a kill until a call of the other process to the killed one
// ends well again. Both read payloads of 1 MiB from each other all the time. The floor is the time
// from the kill until the new process listens.
//
// Forks, so call it before this process has threads.
absl::Status MeasureRestarts(const std::string& device, int restarts, Report& report);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_RESTARTS_H_
