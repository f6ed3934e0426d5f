// Arena: one registered region of memory, from which pools cut send, receive and payload buffers.
//
// Few and large: registration costs microseconds to seconds and pins memory. Owned by a pool; the
// memory is page-aligned, zeroed, asks for huge pages, and is gone with the Arena, which must
// outlive every work request that names it. If the device refuses to deregister the memory (a
// frozen peer may be in the middle of a copy), the memory leaks, and the log says so. Create fails
// with RESOURCE_EXHAUSTED when memory cannot be mapped or pinned.

#ifndef VERBENA_TRANSPORT_MEMORY_ARENA_H_
#define VERBENA_TRANSPORT_MEMORY_ARENA_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

enum class ArenaKind {
  kPrivate,  // only this process and its device touch it: send and receive buffers
  kExposed,  // peers read or write it one-sided: Device::AllocateMemory
};

class Arena {
 public:
  // `access` is a set of IBV_ACCESS_*; 0 serves memory that is only sent from.
  static absl::StatusOr<Arena> Create(Device& device, ibv_pd* pd, size_t bytes, int access,
                                      ArenaKind kind = ArenaKind::kPrivate);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  uint32_t lkey() const { return mr_->lkey; }
  ibv_mr* mr() const { return mr_; }
  Device& device() const { return *device_; }
  int access() const { return access_; }

 private:
  absl::Status Allocate(ArenaKind kind);
  absl::Status Free();
  void Release();

  Device* device_ = nullptr;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  ibv_mr* mr_ = nullptr;
  int access_ = 0;
  bool of_device_ = false;  // the memory came from Device::AllocateMemory
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_ARENA_H_
