// Arena: one registered region of memory, the ground that pools of send and receive buffers stand
// on.
//
// Few and large: registration costs microseconds to seconds and pins memory. Owned by a pool; the
// memory is page-aligned, zeroed, asks for huge pages, and is gone with the Arena, which must
// outlive every work request that names it. Create fails with RESOURCE_EXHAUSTED when memory cannot
// be mapped or pinned.

#ifndef VERBENA_TRANSPORT_MEMORY_ARENA_H_
#define VERBENA_TRANSPORT_MEMORY_ARENA_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/device/handles.h"

namespace verbena {

class Arena {
 public:
  // `access` is a set of IBV_ACCESS_*; 0 serves memory that is only sent from.
  static absl::StatusOr<Arena> Create(Device& device, ibv_pd* pd, size_t bytes, int access);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  uint32_t lkey() const { return mr_->lkey; }

 private:
  void Release();

  char* data_ = nullptr;
  size_t bytes_ = 0;
  MrHandle mr_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_ARENA_H_
