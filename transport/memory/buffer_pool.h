// BufferPool: payload memory of one budget, in buffers of 4 KiB to 64 MiB.
//
// One per executor and budget; used on its scheduler's thread, but for buffers, which may be freed
// on any. Allocating takes a block from the free list of its class: no lock, no allocation, no
// system call, and nothing pinned. A buffer freed elsewhere comes home through a lock-free list.
//
// Memory is registered in arenas, on demand, up to the budget. Blocks of all classes share it by
// the buddy scheme, put together again only when a class runs out; an arena that is wholly free
// makes room for a larger one when a large request would not fit else. So fragmentation delays a
// request at most until the memory in use comes home: Allocate() waits for that, first come, first
// served, whatever the size. A request costs at most twice its bytes.
//
// What the device refuses to pin shrinks the budget, which the log says. The pool outlives its
// buffers and waiters: else their memory stays, with an error in the log.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool,
//                            BufferPool::Create(executor, device, pd, {.name = "send"}));
//   absl::StatusOr<Buffer> buffer = co_await pool->Allocate(1 << 20);

#ifndef VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_H_
#define VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_H_

#include <array>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/memory/size_class.h"

// verbs' headers stay out of what a user of buffers includes.
struct ibv_pd;

namespace verbena {

class Device;

struct BufferPoolOptions {
  // How messages and the log name it.
  std::string name = "payload";
  // What may be registered at most; at least kMinBufferBytes. A whole number of pages is used.
  size_t budget_bytes = size_t{128} << 20;
  // IBV_ACCESS_*, as its memory is used; 0 serves what is only sent from.
  int access = 0;
  // Whether peers read or write it one-sided: landings are, and what RemoteMemory exposes.
  bool exposed = false;
  // The first arena; each later one is as large as all before, up to kMaxBufferBytes. 0: 4 MiB, or
  // 32 MiB on the soft device, where registering pins nothing.
  size_t first_arena_bytes = 0;
};

struct BufferPoolStats {
  size_t budget_bytes = 0;  // less than asked for when the device refused to pin more
  size_t arena_bytes = 0;   // registered
  size_t arenas = 0;
  size_t bytes_in_use = 0;  // in whole blocks
  size_t peak_bytes_in_use = 0;
  uint64_t allocations = 0;
  uint64_t waits = 0;              // allocations that had to wait
  uint64_t refusals = 0;           // TryAllocate() that found nothing
  uint64_t returns_from_afar = 0;  // buffers freed on other threads
  size_t waiting = 0;              // now
  struct SizeClass {
    size_t in_use = 0;
    size_t free = 0;  // blocks of just this size; larger ones are split on demand
  };
  std::array<SizeClass, kSizeClasses> classes{};
};

namespace internal {
class BufferPoolCore;
}

class BufferPool {
 public:
  // The scheduler, the device and the PD outlive the pool. INVALID_ARGUMENT for a budget of less
  // than one buffer. Registers nothing yet.
  static absl::StatusOr<std::unique_ptr<BufferPool>> Create(Scheduler& scheduler, Device& device,
                                                            ibv_pd* pd, BufferPoolOptions options);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  // On the scheduler's thread, or when it does not run.
  ~BufferPool();

  // The await of Allocate(). A waiter that is destroyed gives up its place, and gives back what it
  // was granted but did not live to see.
  class [[nodiscard]] Awaiter final : public Suspension, public IntrusiveNode<Awaiter> {
   public:
    Awaiter(internal::BufferPoolCore& pool, size_t bytes) : pool_(pool), bytes_(bytes) {}
    ~Awaiter() override;

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      if (Cancelled(coroutine) || TakeNow()) return false;
      Suspend(coroutine);
      Queue();
      return true;
    }
    absl::StatusOr<Buffer> await_resume() {
      if (!status_.ok()) return std::move(status_);
      if (!buffer_) return cancel_status();
      return std::move(buffer_);
    }

   private:
    friend class internal::BufferPoolCore;
    // False when it must wait.
    bool TakeNow();
    void Queue();
    void Detach() override { LeaveQueue(); }
    void LeaveQueue();

    internal::BufferPoolCore& pool_;
    const size_t bytes_;
    Buffer buffer_;
    absl::Status status_;
  };

  // co_await gives absl::StatusOr<Buffer> of `bytes`. INVALID_ARGUMENT beyond kMaxBufferBytes,
  // RESOURCE_EXHAUSTED beyond the budget or what can be pinned of it.
  Awaiter Allocate(size_t bytes) { return Awaiter(*core_, bytes); }
  // The same without waiting: RESOURCE_EXHAUSTED when there is none, or others wait already.
  absl::StatusOr<Buffer> TryAllocate(size_t bytes);

  BufferPoolStats stats() const;
  const std::string& name() const;

 private:
  explicit BufferPool(std::unique_ptr<internal::BufferPoolCore> core);

  // Outlives the pool while a buffer's way home leads to it.
  internal::BufferPoolCore* const core_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_H_
