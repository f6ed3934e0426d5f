// What a runtime's metrics cost: of a call that is counted, and of a scrape.

#ifndef VERBENA_BENCHMARKS_RPC_METRICS_COST_H_
#define VERBENA_BENCHMARKS_RPC_METRICS_COST_H_

#include <string>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/transport/executor/options.h"

namespace verbena::benchmarks {

// Echo calls with RuntimeOptions::metrics on and off, at each point of `options`.
//
// A client and a server process have two runtimes each, one with metrics and one without, on the
// same two cores. Short slices of both alternate, and every other pair begins with metrics off.
// Figures are medians over the pairs. Adds a row for each point, and says how each compares with
// its bar; a figure beyond its bar is no failure, since it may be the machine's.
//
// Forks, so call it before this process has threads.
absl::Status MeasureCounting(ExecutorMode mode, const TwoCores& cores, const std::string& device,
                             const Options& options, Report& report);

// How long Metrics::Text() takes after calls of 100 methods have ended with 4 codes each, on both
// sides of one executor. Prints a line for each format, and writes it to JSON.
absl::Status MeasureScrape(const std::string& device, Report& report);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_RPC_METRICS_COST_H_
