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
//
//   precondition                            how it is checked   test
//   a slice lies within size()              a check aborts      buffer_test
//   set_size() of at most capacity()        a check aborts      buffer_test
//   lkey() and region() only of memory      a check aborts      buffer_test
//   its Runtime outlives it                 the log says so     runtime_test
//   a view is not used without its memory   AddressSanitizer    buffer_pool_test

#ifndef VERBENA_TRANSPORT_MEMORY_BUFFER_H_
#define VERBENA_TRANSPORT_MEMORY_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/memory/block.h"

namespace verbena::internal {

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

  // For memory of a pool that counts in a quota: gives `hold`, the first one of this Buffer, back
  // when the memory is home, and no sooner. The quota lives as long as `owner`, which is not null.
  void HoldUntilFree(internal::QuotaHold hold, std::shared_ptr<const void> owner) {
    VERBENA_CHECK(block_ != nullptr && block_->quota_owner == nullptr) << "a Buffer has one hold";
    hold.Keep();
    block_->hold = std::move(hold);
    block_->quota_owner = std::move(owner);
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
