#include "examples/common/mode.h"

#include "fmt/format.h"

namespace examples {

absl::StatusOr<verbena::ExecutorMode> ParseMode(const std::string& name) {
  using verbena::ExecutorMode;
  if (name == "busy") return ExecutorMode::kBusy;
  if (name == "adaptive") return ExecutorMode::kAdaptive;
  if (name == "event") return ExecutorMode::kEvent;
  return absl::InvalidArgumentError(
      fmt::format("--mode is '{}', but must be busy, adaptive or event", name));
}

}  // namespace examples
