// MemoryRegion: registered memory in which buffers lie. Block: the memory behind one Buffer.
//
// Internal to the transport; users see Buffer (buffer.h).

#ifndef VERBENA_TRANSPORT_MEMORY_BLOCK_H_
#define VERBENA_TRANSPORT_MEMORY_BLOCK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/quota.h"

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

// MemoryRegion: a registered region of memory, in which buffers lie.
//
// Whole regions are registered, never single buffers: an arena of a pool, or a user's memory
// (RegisteredMemory). Owned by either, at one address for its life, and gone only when no buffer
// lies in it. An io_uring may register it as well, on the thread of its home scheduler.
class VERBENA_EXPORT MemoryRegion {
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
  // For comparisons only: a buffer may outlive its runtime, so this pointer may outlive its domain.
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

struct Block;

// Gets its blocks back when nobody holds them. Outlives them.
class BlockOwner {
 public:
  virtual ~BlockOwner() = default;
  // From any thread: nobody holds the block any more.
  virtual void OnUnused(Block& block) = 0;
};

// Block: the memory behind one Buffer, and the number of its holders. Internal to transport/memory.
//
// The Buffer holds it, and so does each BufferPin, for an operation that must not lose the memory
// when the Buffer goes. Whoever drops the last reference, on whatever thread, gives it back to its
// owner, which outlives it. A sole holder does so without an atomic write.
struct Block {
  Block(char* its_data, size_t its_capacity, MemoryRegion& its_region, BlockOwner& its_owner)
      : data(its_data),
        capacity(its_capacity),
        region(&its_region),
        owner(&its_owner),
        lkey(its_region.lkey()) {}

  void Hold() { references.fetch_add(1, std::memory_order_relaxed); }
  void Drop() {
    // References come from references: a sole holder stays the sole one.
    if (references.load(std::memory_order_acquire) != 1 &&
        references.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    owner->OnUnused(*this);
  }

  char* data;
  size_t capacity;
  MemoryRegion* region;
  BlockOwner* owner;
  uint32_t lkey;
  std::atomic<uint32_t> references{0};
  // For the owner.
  uint32_t size_class = 0;
  Block* next = nullptr;
  // Memory of a pool counts in a quota until it is free; without an owner it counts in none. The
  // pool takes both when the block comes home, so that a block is freed without its destructor.
  std::shared_ptr<const void> quota_owner;
  Block* previous = nullptr;
  QuotaHold hold;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_BLOCK_H_
