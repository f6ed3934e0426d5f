// BufferPoolCore: what a BufferPool is made of. Internal to transport/memory.
//
// Its own object, since a buffer that another thread has freed may still be on its way here when
// the pool is destroyed: the core then deletes itself when the inbox item that tells of it has run.

#ifndef VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_CORE_H_
#define VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_CORE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/memory/buffer_pool.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

class BufferPoolCore final : private BlockOwner, private InboxItem {
 public:
  BufferPoolCore(Scheduler& scheduler, Device& device, ibv_pd* pd, BufferPoolOptions options);
  BufferPoolCore(const BufferPoolCore&) = delete;
  BufferPoolCore& operator=(const BufferPoolCore&) = delete;
  ~BufferPoolCore() override = default;

  // The pool is gone. Deletes the core, now or when the last news has arrived.
  void Close();

  // Whether `bytes` can ever be had.
  absl::Status CheckSize(size_t bytes) const;
  // Null when it must wait, or, with an error in `status`, when waiting is in vain.
  Block* Take(size_t bytes, absl::Status& status);
  absl::StatusOr<Buffer> TryAllocate(size_t bytes);

  bool has_waiters() const { return !waiters_.empty(); }
  void Wait(BufferPool::Awaiter& waiter);
  // A waiter that gives up.
  void Leave(BufferPool::Awaiter& waiter);

  BufferPoolStats stats() const;
  const std::string& name() const { return options_.name; }

 private:
  void OnUnused(Block& block) override;  // from any thread
  void Run() override;                   // what other threads freed has arrived

  void Release(Block& block);
  Block* FindBlock(uint32_t size_class);
  Block* FindBlockSlowly(uint32_t size_class);
  void EmptyCaches();
  bool Grow(size_t bytes);
  bool RetireFreeArenas(size_t bytes);
  absl::Status AddArena(size_t bytes);
  size_t NextArenaBytes(size_t bytes, size_t room) const;
  absl::Status Exhausted(size_t bytes) const;
  void GrantWaiters();

  Scheduler& scheduler_;
  Device& device_;
  ibv_pd* const pd_;
  const BufferPoolOptions options_;
  const size_t budget_;  // whole pages
  // What may be registered: the budget, or less since the device refused more.
  size_t bound_;
  size_t arena_bytes_ = 0;
  size_t used_ = 0;
  // By class, last in, first out: freed blocks that have not been merged.
  std::array<Block*, kSizeClasses> caches_{};
  BuddyLists buddies_;
  std::vector<std::unique_ptr<CarvedArena>> arenas_;
  IntrusiveList<BufferPool::Awaiter> waiters_;
  // Why the last arena could not be had.
  absl::Status growth_failure_;
  // What the log last said that the budget shrank to.
  size_t logged_bound_ = SIZE_MAX;
  BufferPoolStats stats_;
  bool orphaned_ = false;

  // Blocks that other threads freed, newest first. Whoever finds it empty posts this item; it is
  // emptied by the item alone, so that it is never posted twice.
  alignas(64) std::atomic<Block*> returned_{nullptr};
  // The pool is gone though buffers were not home, and perhaps the scheduler.
  std::atomic<bool> abandoned_{false};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_CORE_H_
