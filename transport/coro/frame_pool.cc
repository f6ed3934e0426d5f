#include "verbena/transport/coro/frame_pool.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <new>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"

namespace verbena::internal {
namespace {

// Blocks are multiples of 128 bytes, each multiple one size class: at most 127 bytes wasted, and
// the class is one division of the size, which operator delete is told.
constexpr size_t kClassBytes = 128;
constexpr size_t kMaxBlockBytes = 8 * 1024;
constexpr size_t kClasses = kMaxBlockBytes / kClassBytes;

// The most bytes that a thread keeps idle: 512 calls in flight with four 1 KiB frames each, four
// times over.
constexpr size_t kMaxCachedBytes = 8 * 1024 * 1024;
// The most bytes that other threads may hand back before the owner looks.
constexpr size_t kMaxReturnedBytes = 2 * 1024 * 1024;

class FramePool;

// Precedes each pooled frame. It stays readable while the block is free; the frame is poisoned.
struct alignas(kCoroutineFrameAlignment) FrameBlock {
  FramePool* origin;  // null when the block belongs to no pool
  FrameBlock* next;   // while the block is in a list

  void* frame() { return this + 1; }
  static FrameBlock* Of(void* frame) { return static_cast<FrameBlock*>(frame) - 1; }
};

constexpr size_t kMaxPooledFrame = kMaxBlockBytes - sizeof(FrameBlock);

size_t ClassOf(size_t frame_bytes) { return (frame_bytes + sizeof(FrameBlock) - 1) / kClassBytes; }
constexpr size_t BlockBytes(size_t size_class) { return (size_class + 1) * kClassBytes; }
constexpr size_t FrameBytes(size_t size_class) {
  return BlockBytes(size_class) - sizeof(FrameBlock);
}

FrameBlock* NewBlock(size_t size_class, FramePool* origin) {
  return new (::operator new(BlockBytes(size_class))) FrameBlock{origin, nullptr};
}

void DeleteBlock(FrameBlock* block, size_t size_class) {
  UnpoisonMemory(block->frame(), FrameBytes(size_class));
  ::operator delete(block, BlockBytes(size_class));
}

// Heads a returned list after its pool was closed: nothing is accepted there any more.
constinit FrameBlock closed_list{nullptr, nullptr};

// One thread's free lists. Its blocks point at it, so it outlives its thread until the last one has
// been freed.
class FramePool {
 public:
  // The owner's thread only.
  FrameBlock* Take(size_t size_class);
  void Give(FrameBlock* block, size_t size_class);
  // Any other thread, or the owner's after Close().
  void GiveBack(FrameBlock* block, size_t size_class);
  // The owner's thread ends. The pool deletes itself, now or with its last block.
  void Close();

 private:
  FrameBlock* TakeReturned(size_t size_class);
  void FreeList(FrameBlock* list, size_t size_class);

  std::array<FrameBlock*, kClasses> free_{};
  size_t cached_bytes_ = 0;
  // Blocks taken, minus those given back on this thread. Blocks that other threads gave to the heap
  // still count here: balance_ subtracts them.
  int64_t live_ = 0;

  // Written by other threads: apart from the owner's lines.
  alignas(64) std::array<std::atomic<FrameBlock*>, kClasses> returned_{};
  std::atomic<size_t> returned_bytes_{0};
  // Minus the blocks that other threads gave to the heap; Close() adds what is still out. It passes
  // through zero once, when the last block is gone, and whoever brings it there deletes the pool.
  std::atomic<int64_t> balance_{0};
};

inline FrameBlock* FramePool::Take(size_t size_class) {
  ++live_;
  FrameBlock* block = free_[size_class];
  if (block == nullptr) [[unlikely]] {
    block = TakeReturned(size_class);
    if (block == nullptr) return NewBlock(size_class, this);
  }
  VERBENA_DCHECK(block->origin == this && cached_bytes_ >= BlockBytes(size_class))
      << cached_bytes_ << " bytes cached, class " << size_class;
  free_[size_class] = block->next;
  cached_bytes_ -= BlockBytes(size_class);
  return block;
}

inline void FramePool::Give(FrameBlock* block, size_t size_class) {
  VERBENA_DCHECK(live_ > 0) << "a frame of " << BlockBytes(size_class) << " bytes came back twice";
  --live_;
  if (cached_bytes_ + BlockBytes(size_class) > kMaxCachedBytes) [[unlikely]] {
    DeleteBlock(block, size_class);
    return;
  }
  PoisonMemory(block->frame(), FrameBytes(size_class));
  cached_bytes_ += BlockBytes(size_class);
  block->next = free_[size_class];
  free_[size_class] = block;
}

void FramePool::GiveBack(FrameBlock* block, size_t size_class) {
  const size_t bytes = BlockBytes(size_class);
  if (returned_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= kMaxReturnedBytes) {
    PoisonMemory(block->frame(), FrameBytes(size_class));
    std::atomic<FrameBlock*>& list = returned_[size_class];
    FrameBlock* head = list.load(std::memory_order_relaxed);
    while (head != &closed_list) {
      block->next = head;
      // Once it is in the list the block is the owner's, and the pool may be gone.
      if (list.compare_exchange_weak(head, block, std::memory_order_release,
                                     std::memory_order_relaxed)) {
        return;
      }
    }
  }
  returned_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  DeleteBlock(block, size_class);
  if (balance_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// Moves what other threads gave back into the (empty) free list and returns its head.
FrameBlock* FramePool::TakeReturned(size_t size_class) {
  std::atomic<FrameBlock*>& list = returned_[size_class];
  if (list.load(std::memory_order_relaxed) == nullptr) return nullptr;
  const size_t bytes = BlockBytes(size_class);
  FrameBlock* block = list.exchange(nullptr, std::memory_order_acquire);
  while (block != nullptr) {
    FrameBlock* next = block->next;
    returned_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    Give(block, size_class);
    block = next;
  }
  return free_[size_class];
}

void FramePool::FreeList(FrameBlock* list, size_t size_class) {
  while (list != nullptr) {
    FrameBlock* next = list->next;
    DeleteBlock(list, size_class);
    list = next;
  }
}

void FramePool::Close() {
  for (size_t size_class = 0; size_class < kClasses; ++size_class) {
    FreeList(free_[size_class], size_class);
    FrameBlock* returned = returned_[size_class].exchange(&closed_list, std::memory_order_acquire);
    for (FrameBlock* block = returned; block != nullptr; block = block->next) --live_;
    FreeList(returned, size_class);
  }
  // Read before: another thread may delete the pool as soon as the count is in.
  const int64_t out = live_;
  VERBENA_CHECK(out >= 0) << "more frames came back than were taken: " << out;
  if (balance_.fetch_add(out, std::memory_order_acq_rel) + out == 0) delete this;
}

// Trivial thread_locals: they may be read while a thread's other thread_locals are destroyed.
constinit thread_local FramePool* this_pool = nullptr;
constinit thread_local bool thread_ended = false;

struct PoolCloser {
  bool armed = false;
  ~PoolCloser() {
    thread_ended = true;
    if (FramePool* pool = this_pool) {
      this_pool = nullptr;
      pool->Close();
    }
  }
};
thread_local PoolCloser pool_closer;

// Null when the thread is past the destruction of its pool.
[[gnu::noinline]] FramePool* OpenPool() {
  if (thread_ended) return nullptr;
  pool_closer.armed = true;  // its first use is what registers its destructor
  return this_pool = new FramePool;
}

}  // namespace

// Neither may be inlined: a coroutine must not keep the address of a thread_local across a
// suspension, after which it may be on another thread.

[[gnu::noinline]] void* AllocateFrame(size_t bytes) noexcept {
  if (bytes > kMaxPooledFrame) [[unlikely]]
    return ::operator new(bytes);
  const size_t size_class = ClassOf(bytes);
  FramePool* pool = this_pool;
  if (pool == nullptr) [[unlikely]] {
    pool = OpenPool();
    if (pool == nullptr) return NewBlock(size_class, nullptr)->frame();
  }
  void* frame = pool->Take(size_class)->frame();
  UnpoisonMemory(frame, bytes);
  return frame;
}

[[gnu::noinline]] void FreeFrame(void* frame, size_t bytes) noexcept {
  if (bytes > kMaxPooledFrame) [[unlikely]] {
    ::operator delete(frame, bytes);
    return;
  }
  const size_t size_class = ClassOf(bytes);
  FrameBlock* block = FrameBlock::Of(frame);
  FramePool* origin = block->origin;
  if (origin == nullptr) [[unlikely]] {
    DeleteBlock(block, size_class);
  } else if (origin == this_pool) {
    origin->Give(block, size_class);
  } else {
    origin->GiveBack(block, size_class);
  }
}

void* AllocateAlignedFrame(size_t bytes, size_t alignment) noexcept {
  return ::operator new(bytes, std::align_val_t{alignment});
}

void FreeAlignedFrame(void* frame, size_t bytes, size_t alignment) noexcept {
  ::operator delete(frame, bytes, std::align_val_t{alignment});
}

}  // namespace verbena::internal
