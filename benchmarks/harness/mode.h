// An executor's mode by name, as benchmarks take and report it.

#ifndef VERBENA_BENCHMARKS_HARNESS_MODE_H_
#define VERBENA_BENCHMARKS_HARNESS_MODE_H_

#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/executor/options.h"

namespace verbena::benchmarks {

// "busy", "adaptive" or "event"; InvalidArgument names any other.
absl::StatusOr<ExecutorMode> ParseMode(const std::string& name);
const char* ModeName(ExecutorMode mode);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_MODE_H_
