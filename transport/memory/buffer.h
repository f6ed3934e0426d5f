// Buffer: an owning handle on registered payload memory.
//
// The memory can be read and written here, posted to the device it is registered with (its lkey),
// handed to a file, and sent or received as a payload. From a pool it begins at a page, as O_DIRECT
// wants it. Move-only, two words. Destroying a Buffer, on any thread, gives the memory back to its
// BufferPool or RegisteredMemory, which must outlive the Buffer. Memory from a pool holds whatever
// was there before, and while pooled it is poisoned under AddressSanitizer.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel.AllocateBuffer(65536));
//   VERBENA_CO_RETURN_IF_ERROR(co_await file.Write(block.Slice(0, 4096), /*offset=*/0));
//
// BufferView is a part of a Buffer, and owns nothing. It is valid while the Buffer, or a BufferPin
// made from the view, lives. A BufferPin keeps the memory, not the Buffer: transports hold one for
// each operation that a device or the kernel may still carry out when the waiting Task is
// destroyed.

#ifndef VERBENA_TRANSPORT_MEMORY_BUFFER_H_
#define VERBENA_TRANSPORT_MEMORY_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "verbena/transport/base/check.h"

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

// Hears once that a block is free again. Lives until then.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  // On the thread of the block's pool.
  virtual void OnBlockHome(size_t capacity) = 0;
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
  BlockListener* listener = nullptr;  // of memory from a pool
  // For the owner.
  uint32_t size_class = 0;
  Block* next = nullptr;
  Block* previous = nullptr;
};

class BufferPin;

}  // namespace verbena::internal

namespace verbena {

class BufferView {
 public:
  // An empty view.
  BufferView() = default;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Precondition of both: registered().
  uint32_t lkey() const { return block().lkey; }
  internal::MemoryRegion& region() const { return *block().region; }
  // False for an empty view of no Buffer.
  bool registered() const { return block_ != nullptr; }

  // The part [offset, offset + bytes). Precondition: it lies within size().
  BufferView Slice(size_t offset, size_t bytes) const {
    VERBENA_CHECK(offset <= size_ && bytes <= size_ - offset)
        << "[" << offset << ", +" << bytes << ") of " << size_ << " bytes";
    return {data_ + offset, bytes, block_};
  }

 private:
  friend class Buffer;
  friend class internal::BufferPin;
  BufferView(char* data, size_t size, internal::Block* block)
      : data_(data), size_(size), block_(block) {}
  internal::Block& block() const {
    VERBENA_CHECK(block_ != nullptr) << "a view of no Buffer has no registered memory";
    return *block_;
  }

  char* data_ = nullptr;
  size_t size_ = 0;
  internal::Block* block_ = nullptr;
};

class Buffer {
 public:
  // Empty: no memory.
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Reset();
      block_ = std::exchange(other.block_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Buffer() { Reset(); }

  // Whether there is memory.
  explicit operator bool() const { return block_ != nullptr; }

  char* data() const { return block_ == nullptr ? nullptr : block_->data; }
  size_t size() const { return size_; }
  // The most that set_size() takes.
  size_t capacity() const { return block_ == nullptr ? 0 : block_->capacity; }
  // Precondition: bytes <= capacity().
  void set_size(size_t bytes) {
    VERBENA_CHECK(bytes <= capacity()) << bytes << " of " << capacity() << " bytes";
    size_ = bytes;
  }

  // Precondition of both: there is memory.
  uint32_t lkey() const { return view().lkey(); }
  internal::MemoryRegion& region() const { return view().region(); }

  BufferView view() const { return {data(), size_, block_}; }
  // The part [offset, offset + bytes). Precondition: it lies within size().
  BufferView Slice(size_t offset, size_t bytes) const { return view().Slice(offset, bytes); }

  // Gives the memory back now.
  void Reset() {
    size_ = 0;
    if (internal::Block* block = std::exchange(block_, nullptr)) block->Drop();
  }

  // For objects that count memory of a pool: `listener`, the first one of this Buffer, hears when
  // the memory is home.
  void set_listener(internal::BlockListener& listener) {
    VERBENA_CHECK(block_ != nullptr && block_->listener == nullptr) << "a Buffer has one listener";
    block_->listener = &listener;
  }
  // For owners of blocks: takes over one reference to `block`.
  Buffer(internal::Block& block, size_t size) : block_(&block), size_(size) {}

 private:
  internal::Block* block_ = nullptr;
  size_t size_ = 0;
};

}  // namespace verbena

namespace verbena::internal {

class BufferPin {
 public:
  BufferPin() = default;
  // Precondition: the view's Buffer, or another pin of it, lives.
  explicit BufferPin(const BufferView& view) : block_(view.block_) {
    if (block_ != nullptr) block_->Hold();
  }
  BufferPin(BufferPin&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BufferPin& operator=(BufferPin&& other) noexcept {
    if (this != &other) {
      Reset();
      block_ = std::exchange(other.block_, nullptr);
    }
    return *this;
  }
  ~BufferPin() { Reset(); }

  void Reset() {
    if (Block* block = std::exchange(block_, nullptr)) block->Drop();
  }

 private:
  Block* block_ = nullptr;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_BUFFER_H_
