#include "verbena/transport/link/check_registered.h"

#include <string>

#include "fmt/format.h"
#include "verbena/transport/memory/memory_region.h"

namespace verbena::internal {

absl::Status CheckRegistered(const BufferView& view, const ibv_pd* pd, const Device& device) {
  constexpr const char* kAdvice =
      "AllocateBuffer() of the Channel or the ServerContext gives memory that is registered with "
      "the device of its link";
  if (!view.registered()) {
    return absl::InvalidArgumentError(
        fmt::format("the memory is not registered with {}; {}", device.name(), kAdvice));
  }
  if (view.region().pd() == pd) return absl::OkStatus();
  const std::string& other = view.region().device_name();
  return absl::FailedPreconditionError(fmt::format(
      "the memory is registered with {}{}, and the link uses {}; {}", other,
      other == device.name() ? " by another runtime, or as it was before it failed and was reopened"
                             : "",
      device.name(), kAdvice));
}

}  // namespace verbena::internal
