// BufferPoolCore: the inside of a BufferPool. Internal to transport/memory.
//
// An object of its own: a buffer that another thread has freed may still be on its way here when
// the pool is destroyed. The core then deletes itself once the inbox item that reports the buffer
// has run.

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
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/memory/arena_growth.h"
#include "verbena/transport/memory/buffer_pool.h"
#include "verbena/transport/memory/carved_arena.h"
#include "verbena/transport/memory/size_class.h"

namespace verbena::internal {

class BufferPoolCore final : private BlockOwner, private InboxItem, private ControlJob::Waiter {
 public:
  BufferPoolCore(Scheduler& scheduler, Device& device, ibv_pd* pd, BufferPoolOptions options);
  BufferPoolCore(const BufferPoolCore&) = delete;
  BufferPoolCore& operator=(const BufferPoolCore&) = delete;
  ~BufferPoolCore() override = default;

  // The pool is gone. Deletes the core, now or when the last news has arrived.
  void Close();

  // Whether `bytes` can ever be had.
  absl::Status CheckSize(size_t bytes) const;
  // Null if the request must wait, or, with an error in `status`, if waiting is in vain. If the
  // caller may not wait (`may_wait`), this may register more memory at once.
  Block* Take(size_t bytes, bool may_wait, absl::Status& status);
  absl::StatusOr<Buffer> TryAllocate(size_t bytes);

  bool unused() const { return used_ == 0 && waiters_.empty(); }
  std::vector<std::unique_ptr<CarvedArena>> TakeArenas();

  bool has_waiters() const { return !waiters_.empty() || !large_waiters_.empty(); }
  // (start) A request for more than a sixteenth of the budget is large: a block for it may come
  // free long after there is room for many others, so these pass it.
  bool IsLarge(size_t bytes) const { return SizeClassBytes(SizeClassOf(bytes)) > budget_ / 16; }
  // Whether a request has to wait for its turn. Not while the pool grows: the new memory serves the
  // waiters first, and the free memory may serve others meanwhile.
  bool MustQueue(size_t bytes) const {
    return growth_ == nullptr && (!waiters_.empty() || (!large_waiters_.empty() && IsLarge(bytes)));
  }
  void Wait(BufferPool::Awaiter& waiter);
  // A waiter that gives up.
  void Leave(BufferPool::Awaiter& waiter);

  BufferPoolStats stats() const;
  const absl::Status& growth_failure() const { return growth_failure_; }
  const std::string& name() const { return options_.name; }

 private:
  void OnUnused(Block& block) override;  // from any thread
  void Run() override;                   // what other threads freed has arrived
  void OnJobDone() override;             // a growth has ended

  void Release(Block& block);
  static void TellListener(Block& block);
  Block* FindBlock(uint32_t size_class, bool may_wait);
  Block* FindBlockSlowly(uint32_t size_class, bool may_wait);
  void EmptyCaches();
  bool has_control_threads() const;
  bool GrowsInBackground(bool may_wait) const;
  size_t room() const { return bound_ - arena_bytes_ - growing_bytes_; }
  bool Grow(size_t bytes, bool may_wait);
  void GrowAhead();
  ArenaGrowth Plan(size_t bytes);
  bool RetireFreeArenas(ArenaGrowth& growth);
  void StartGrowth(ArenaGrowth growth);
  bool EndGrowth(absl::StatusOr<std::unique_ptr<CarvedArena>> arena, size_t retired_bytes);
  void Refuse(const absl::Status& refused, size_t retired_bytes);
  void AbandonGrowth();
  void PauseGrowth();
  void SetMark();
  size_t NextArenaBytes(size_t bytes) const;
  absl::Status Exhausted(size_t bytes) const;
  void ServeWaiters();
  void Serve(IntrusiveList<BufferPool::Awaiter>& waiters);

  Scheduler& scheduler_;
  Device& device_;
  ibv_pd* const pd_;
  const BufferPoolOptions options_;
  size_t budget_;  // whole pages; none once the arenas are taken
  // The most that may be registered: the budget, or less since the device refused more.
  size_t bound_;
  size_t arena_bytes_ = 0;
  size_t used_ = 0;
  // If more is in use, the pool grows ahead of need. SIZE_MAX when it cannot grow, or grows
  // already.
  size_t mark_ = SIZE_MAX;
  // By class, last in, first out: freed blocks that have not been merged.
  std::array<Block*, kSizeClasses> caches_{};
  BuddyLists buddies_;
  std::vector<std::unique_ptr<CarvedArena>> arenas_;
  IntrusiveList<BufferPool::Awaiter> waiters_;
  IntrusiveList<BufferPool::Awaiter> large_waiters_;
  // The growth that a control thread works on, or nullptr: the bytes that it takes of the budget,
  // those of the arenas that it destroys first, and the fewest that it needs.
  using Growth = TypedControlJob<ArenaGrowth>;
  Growth* growth_ = nullptr;
  size_t growing_bytes_ = 0;
  size_t retiring_bytes_ = 0;
  size_t growing_least_ = 0;
  // Why the bound is less than the budget, and when the device may be asked again for more than it
  // refused.
  absl::Status growth_failure_;
  TimePoint retry_at_ = kBeforeAllTime;
  Duration retry_pause_{};
  // The device refused so many bytes although as many had been given up for them. The pool asks for
  // so many, or more, only after retry_at_.
  size_t refused_bytes_ = SIZE_MAX;
  // The bound that the log last reported.
  size_t logged_bound_ = SIZE_MAX;
  BufferPoolStats stats_;
  bool orphaned_ = false;

  // Blocks that other threads freed, newest first. A thread that finds the list empty posts this
  // item. Only the item empties the list, so that it is never posted twice.
  alignas(64) std::atomic<Block*> returned_{nullptr};
  // The pool is gone although buffers were not home. The scheduler may be gone as well.
  std::atomic<bool> abandoned_{false};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_BUFFER_POOL_CORE_H_
