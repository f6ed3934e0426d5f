// Storms: client processes that all connect to one server at once, each from four executors.

#ifndef VERBENA_BENCHMARKS_LINKS_STORM_H_
#define VERBENA_BENCHMARKS_LINKS_STORM_H_

#include <string>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {

// Adds two rows: `storm`, the first calls of `clients` processes to a server that knows none of
// them, and `comeback`, one call of each executor after the server was killed. Times count from the
// signal to begin. In `comeback` the benchmark gives that signal before it starts the server again.
// The floor is as many bare TCP connections of the same processes at once, each with a byte there
// and back. If calls fail, their row says how many, and the run fails.
//
// Forks, so call it before this process has threads.
absl::Status MeasureStorm(const std::string& device, int clients, Report& report);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_STORM_H_
