// ParseMode: parses the value of --mode.

#ifndef VERBENA_EXAMPLES_COMMON_MODE_H_
#define VERBENA_EXAMPLES_COMMON_MODE_H_

#include <string>

#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"

namespace examples {

// "busy", "adaptive" or "event"; INVALID_ARGUMENT names them.
absl::StatusOr<verbena::ExecutorMode> ParseMode(const std::string& name);

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_MODE_H_
