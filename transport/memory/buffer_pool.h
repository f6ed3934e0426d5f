// BufferPool: the payload memory of one executor for one budget, with its options and counts.
// MemoryBudgets (memory_budgets.h) has the budgets of all pools.
//
// An endpoint or the program owns a pool. It is used on its scheduler's thread; its buffers may be
// freed on any.

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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/memory/carved_arena.h"

// verbs' headers stay out of what a user of buffers includes.
struct ibv_pd;

namespace verbena::internal {

class ControlPool;
class Device;
class CarvedArena;

struct BufferPoolOptions {
  // How messages and the log name it.
  std::string name = "payload";
  // The most bytes that the pool may register; at least kMinBufferBytes. A whole number of pages is
  // used.
  size_t budget_bytes = size_t{128} << 20;
  // A set of IBV_ACCESS_*; 0 for memory that is only sent from.
  int access = 0;
  // Whether peers read or write the memory one-sided, as they do with landings and loans.
  bool exposed = false;
  // The first arena; each later one is as large as all before, up to kMaxBufferBytes. 0: a quarter
  // of the budget, but 256 KiB at least and 4 MiB at most; 32 MiB on the soft device, where
  // registering pins nothing.
  size_t first_arena_bytes = 0;
  // Its threads register arenas; it outlives the pool. nullptr: the calling thread registers them.
  ControlPool* control = nullptr;
};

struct BufferPoolStats {
  size_t budget_bytes = 0;  // less than asked for when the device refused to pin more
  size_t arena_bytes = 0;   // registered
  size_t arenas = 0;
  size_t growing_bytes = 0;  // being registered by a control thread
  size_t bytes_in_use = 0;   // in whole blocks
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
class BufferPoolCore;

// BufferPool: payload memory of one budget, in buffers of 4 KiB to 64 MiB.
//
// One per executor and budget. Used on its scheduler's thread, but its buffers may be freed on any
// thread. Allocating takes a block from the free list of its class: no lock, no allocation, no
// system call, and nothing pinned. A buffer freed elsewhere comes home through a lock-free list.
//
// Memory is registered in arenas up to the budget, which a growth under way counts against.
// Registering may take milliseconds to seconds. With a ControlPool that has threads, a control
// thread registers the next arena when less than a quarter of the memory is free, or an allocation
// finds nothing. Allocate() waits meanwhile. TryAllocate() fails on a thread that runs a scheduler;
// on other threads it registers and blocks. Without such a ControlPool, both register on the
// calling thread.
//
// Blocks of all classes share the memory by the buddy scheme; they are put together again only when
// a class runs out. An arena that is wholly free makes room for a larger one if a large request
// would not fit otherwise. So fragmentation delays a request at most until the memory in use comes
// home. Allocate() waits for that, first come, first served, except that requests for at most a
// sixteenth of the budget pass larger ones that wait. So a wait for a large block stops nobody
// else. While the pool grows, requests that fit are served at once: the new arena goes to the
// waiters first. A buffer takes whole pages, at most a quarter more than its bytes need
// (carved_arena.h).
//
// If the device refuses to pin more, the budget shrinks, and the log says so. Requests for which
// too little is left fail with the device's reason. With control threads, the pool asks the device
// again after 100 ms, then less and less often, down to every 10 s; without them, when no buffer is
// in use. The pool must outlive its buffers and waiters. Otherwise their memory stays, with an
// error in the log.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool,
//                            BufferPool::Create(executor, device, pd, {.name = "send"}));
//   absl::StatusOr<Buffer> buffer = co_await pool->Allocate(1 << 20);
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

  // The await of Allocate(). A waiter that is destroyed gives up its place, and gives back a buffer
  // that it was given but has not returned yet.
  class [[nodiscard]] Awaiter final : public Suspension, public IntrusiveNode<Awaiter> {
   public:
    Awaiter(BufferPoolCore& pool, size_t bytes) : pool_(pool), bytes_(bytes) {}
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
      VERBENA_RETURN_IF_ERROR(status_);
      if (!buffer_) return cancel_status();
      return std::move(buffer_);
    }

   private:
    friend class BufferPoolCore;
    // False when it must wait.
    bool TakeNow();
    void Queue();
    void Detach() override { LeaveQueue(); }
    void LeaveQueue();

    BufferPoolCore& pool_;
    const size_t bytes_;
    Buffer buffer_;
    absl::Status status_;
  };

  // co_await gives absl::StatusOr<Buffer> of `bytes`. INVALID_ARGUMENT beyond kMaxBufferBytes,
  // RESOURCE_EXHAUSTED beyond the budget, or beyond the part of it that can be pinned, with the
  // device's reason.
  Awaiter Allocate(size_t bytes) { return Awaiter(*core_, bytes); }
  // Allocates without waiting: RESOURCE_EXHAUSTED if there is no memory (a control thread may be
  // about to register more), or if it may not pass others that wait already.
  absl::StatusOr<Buffer> TryAllocate(size_t bytes);

  // Whether all buffers are home, and nobody waits for one.
  bool unused() const;
  // On the scheduler's thread, while it is unused(): gives up the memory, which may then be freed
  // on any thread. Nothing can be allocated any more.
  std::vector<std::unique_ptr<CarvedArena>> TakeArenas();

  BufferPoolStats stats() const;
  // Why the device registers less than the budget; OK if it has not refused any.
  const absl::Status& growth_failure() const;
  const std::string& name() const;
  // Whether smaller requests pass a request for `bytes` that waits.
  bool IsLarge(size_t bytes) const;

 private:
  explicit BufferPool(std::unique_ptr<BufferPoolCore> core);

  // Outlives the pool while a freed buffer is on its way home to it.
  BufferPoolCore* const core_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_H_
