#include "verbena/benchmarks/harness/mode.h"

#include <fmt/format.h>

namespace verbena::benchmarks {

absl::StatusOr<ExecutorMode> ParseMode(const std::string& name) {
  for (const ExecutorMode mode :
       {ExecutorMode::kBusy, ExecutorMode::kAdaptive, ExecutorMode::kEvent}) {
    if (name == ModeName(mode)) return mode;
  }
  return absl::InvalidArgumentError(
      fmt::format("a mode is '{}', but must be busy, adaptive or event", name));
}

const char* ModeName(ExecutorMode mode) {
  switch (mode) {
    case ExecutorMode::kBusy:
      return "busy";
    case ExecutorMode::kAdaptive:
      return "adaptive";
    case ExecutorMode::kEvent:
      return "event";
  }
  return "unknown";
}

}  // namespace verbena::benchmarks
