#include "verbena/transport/memory/arena.h"

#include <unistd.h>

#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {
namespace {

// The bytes of the pages that hold `bytes`.
size_t RoundedToPages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

absl::StatusOr<Arena> Arena::Create(Device& device, ibv_pd* pd, size_t bytes, int access,
                                    ArenaKind kind) {
  Arena arena;
  arena.device_ = &device;
  arena.bytes_ = RoundedToPages(bytes);
  VERBENA_RETURN_IF_ERROR(arena.Allocate(kind));
  VERBENA_ASSIGN_OR_RETURN(ibv_mr * mr, device.RegMr(pd, arena.data_, arena.bytes_, access));
  arena.mr_ = mr;
  arena.access_ = access;
  return arena;
}

absl::Status Arena::Allocate(ArenaKind kind) {
  if (kind == ArenaKind::kExposed) {
    absl::StatusOr<std::byte*> memory = device_->AllocateMemory(bytes_);
    if (memory.ok()) {
      data_ = reinterpret_cast<char*>(*memory);
      of_device_ = true;
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(memory.status())) return memory.status();
    VERBENA_LOG_LINE(
        kMemory, kWarning,
        fmt::format(
            "{}: {} bytes of payload memory are not mapped by peers, who then reach it more "
            "slowly: {}",
            device_->name(), bytes_, memory.status().ToString()),
        {{"device", device_->name()}});
  }
  VERBENA_ASSIGN_OR_RETURN(std::byte * pages, MapPages(bytes_));
  data_ = reinterpret_cast<char*>(pages);
  // Before a registration pins them where they are.
  const ibv_context* context = device_->context();
  if (device_->kind() == DeviceKind::kRdma && context != nullptr && context->device != nullptr) {
    PreferNumaNode(data_, bytes_, NumaNodeOf(context->device->ibdev_path));
  }
  return absl::OkStatus();
}

Arena::Arena(Arena&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mr_(std::exchange(other.mr_, nullptr)),
      access_(other.access_),
      of_device_(other.of_device_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    Release();
    device_ = other.device_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mr_ = std::exchange(other.mr_, nullptr);
    access_ = other.access_;
    of_device_ = other.of_device_;
  }
  return *this;
}

Arena::~Arena() { Release(); }

absl::Status Arena::Free() {
  if (mr_ != nullptr) {
    // If this fails, the memory stays: whatever was mapped there next would be written into.
    VERBENA_RETURN_IF_ERROR(device_->DeregMr(mr_));
  }
  auto* memory = reinterpret_cast<std::byte*>(data_);
  if (of_device_) return device_->FreeMemory(memory, bytes_);
  UnmapPages(memory, bytes_);
  return absl::OkStatus();
}

void Arena::Release() {
  if (data_ == nullptr) return;
  absl::Status freed = Free();
  if (!freed.ok()) LogLeakedObject(*device_, "memory region", freed, Excuse::kKeptMemory);
  data_ = nullptr;
  mr_ = nullptr;
}

}  // namespace verbena::internal
