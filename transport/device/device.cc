#include "verbena/transport/device/device.h"

#include "verbena/transport/device/pages.h"

namespace verbena::internal {

absl::StatusOr<std::byte*> Device::AllocateMemory(size_t bytes) { return MapPages(bytes); }

absl::Status Device::FreeMemory(std::byte* memory, size_t bytes) {
  UnmapPages(memory, bytes);
  return absl::OkStatus();
}

}  // namespace verbena::internal
