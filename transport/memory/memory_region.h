// MemoryRegion: a registered region of memory, in which buffers lie.
//
// Whole regions are registered, never single buffers: an arena of a pool, or a user's memory
// (RegisteredMemory). Owned by either, at one address for its life, and gone only when no buffer
// lies in it. An io_uring may register it as well, on the thread of its home scheduler.

#ifndef VERBENA_TRANSPORT_MEMORY_MEMORY_REGION_H_
#define VERBENA_TRANSPORT_MEMORY_MEMORY_REGION_H_

#include <cstddef>
#include <cstdint>
#include <string>

// verbs' headers stay out of what a user of buffers includes.
struct ibv_mr;
struct ibv_pd;

namespace verbena {
class Scheduler;
}  // namespace verbena

namespace verbena::internal {

class MemoryRegion;

// Something beside the device that has registered regions, such as an io_uring.
class RegionRegistrar {
 public:
  virtual ~RegionRegistrar() = default;
  // The region is about to be unmapped; no operation on it is under way.
  virtual void OnRegionGone(MemoryRegion& region) = 0;
};

class MemoryRegion {
 public:
  // `home` is the scheduler on whose thread the region is made and destroyed; null when any thread
  // may do that. `access` is the set of IBV_ACCESS_* with which the device named `device`
  // registered `mr`.
  MemoryRegion(std::string device, char* data, size_t bytes, ibv_mr* mr, int access,
               Scheduler* home);
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;
  ~MemoryRegion() { LeaveRegistrar(); }

  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  uint32_t lkey() const { return lkey_; }
  uint32_t rkey() const { return rkey_; }
  ibv_mr* mr() const { return mr_; }
  // For comparisons only: a buffer may outlive its runtime, and so this pointer its domain.
  const ibv_pd* pd() const { return pd_; }
  const std::string& device_name() const { return device_; }
  int access() const { return access_; }
  Scheduler* home() const { return home_; }

  // The registrar that knows the region by `registered_index()`; null when none does. For the home
  // scheduler's thread alone: other threads must compare home() first.
  RegionRegistrar* registrar() const { return registrar_; }
  uint32_t registered_index() const { return registered_index_; }
  void SetRegistrar(RegionRegistrar* registrar, uint32_t index) {
    registrar_ = registrar;
    registered_index_ = index;
  }

 protected:
  // Before the memory is unmapped.
  void LeaveRegistrar() {
    if (registrar_ != nullptr) registrar_->OnRegionGone(*this);
    registrar_ = nullptr;
  }

 private:
  const std::string device_;
  char* const data_;
  const size_t bytes_;
  ibv_mr* const mr_;
  const ibv_pd* const pd_;
  const int access_;
  const uint32_t lkey_;
  const uint32_t rkey_;
  Scheduler* const home_;
  RegionRegistrar* registrar_ = nullptr;
  uint32_t registered_index_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_MEMORY_REGION_H_
