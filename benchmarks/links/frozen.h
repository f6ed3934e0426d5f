// A server's shutdown while its clients are frozen: their processes are stopped, and do not end.

#ifndef VERBENA_BENCHMARKS_LINKS_FROZEN_H_
#define VERBENA_BENCHMARKS_LINKS_FROZEN_H_

#include <string>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/transport/base/clock.h"

namespace verbena::benchmarks {

// Adds a row `shutdown`: the time from a server's shutdown with `grace` until its process has
// ended, while `clients` processes are stopped. Each of these has a stream that it does not read,
// and reads payloads of 16 MiB. The floor is the same measurement with one client.
//
// Forks, so call it before this process has threads.
absl::Status MeasureFrozen(const std::string& device, int clients, Duration grace, Report& report);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_FROZEN_H_
