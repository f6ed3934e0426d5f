// Scheduler: resumes coroutines. The executor is one; tests and simulators have their own.
//
// A coroutine belongs to the scheduler that started it and is resumed on its thread only.
// Everything here except Post() is for that thread. Nothing fails.

#ifndef VERBENA_TRANSPORT_CORO_SCHEDULER_H_
#define VERBENA_TRANSPORT_CORO_SCHEDULER_H_

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/ticks.h"

// Whether a coroutine of this translation unit resumes the next one by a tail call. gcc does so
// only if it optimises (-O1 and -Og need -foptimize-sibling-calls, of which no macro tells), and
// not under address and thread sanitizer. Templates that depend on it have it as an argument, so
// that code with and without it may be linked into one program.
#if defined(__clang__) || (defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && \
                           !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_HWADDRESS__))
#define VERBENA_TAIL_CALLS true
#else
#define VERBENA_TAIL_CALLS false
#endif

namespace verbena {

namespace internal {

// A suspended coroutine, as the queue of ready ones sees it. Every promise is one.
class ReadyNode : public IntrusiveNode<ReadyNode> {
 public:
  std::coroutine_handle<> handle;
};

// Something that happens at a time. Owned by whoever waits; its destructor must have stopped it
// (StopTimer), which the classes built on it do.
class Timer : public IntrusiveNode<Timer> {
 public:
  virtual ~Timer() = default;
  // Runs on the scheduler's thread, once per start, never before `when`. The timer is stopped by
  // then.
  virtual void OnTimer() = 0;

  TimePoint when{};
};

// Work sent from another thread. It must live until Run() has begun, and may delete itself there.
class InboxItem {
 public:
  virtual ~InboxItem() = default;
  virtual void Run() = 0;

  std::atomic<InboxItem*> next{nullptr};
};

}  // namespace internal

class VERBENA_EXPORT Scheduler {
 public:
  Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  virtual ~Scheduler();

  // The time of this turn of the loop, one time for all that runs in the turn. The first call in a
  // turn may read the clock, the others are free; a turn in which nobody asks pays nothing.
  TimePoint now() const {
    if (now_ == kUnread) now_ = ReadClock();
    return now_;
  }

  // Readings of the processor's counter, which tell times within a turn: now() stands still there.
  internal::TurnTicks& ticks() { return ticks_; }
  const internal::TurnTicks& ticks() const { return ticks_; }

  // Queues a suspended coroutine to be resumed. Never resumes inline. The coroutine must not be
  // queued already.
  void Ready(internal::ReadyNode& node) {
    VERBENA_DCHECK(MayBeUsedHere()) << "a coroutine of another thread's scheduler was made ready";
    VERBENA_DCHECK(node.handle != nullptr && !node.handle.done())
        << "a coroutine that has ended was made ready";
    ready_.PushBack(node);
  }

  // In the place of a tail call: the coroutine that suspends now is followed by that of `node`. Who
  // resumed it by ResumeAll() resumes the other one, too. Otherwise RunReady() does, next.
  void HandOver(internal::ReadyNode& node) {
    VERBENA_DCHECK(MayBeUsedHere()) << "a coroutine of another thread's scheduler was made ready";
    ready_.PushFront(node);
    handed_over_ = &node;
  }
  // Resumes `coroutine`, and one after another those to which it and its followers hand over. One
  // that is destroyed meanwhile has left the list: its address alone is looked at.
  void ResumeAll(std::coroutine_handle<> coroutine) {
    handed_over_ = nullptr;
    coroutine.resume();
    while (handed_over_ != nullptr && ready_.Front() == handed_over_) {
      internal::ReadyNode& next = *std::exchange(handed_over_, nullptr);
      next.Unlink();
      next.handle.resume();
    }
  }

  // Restarts a timer that runs.
  virtual void StartTimer(internal::Timer& timer, TimePoint when) = 0;
  // Does nothing when the timer is not running.
  virtual void StopTimer(internal::Timer& timer) = 0;

  // From any thread: runs `item` on the scheduler's thread, in the order posted by each thread.
  virtual void Post(internal::InboxItem& item) = 0;

  // The scheduler whose thread this is, or nullptr.
  static Scheduler* Current();

  // False on a thread that is inside the loop of another scheduler, or inside none while another
  // thread is inside this one's. True does not say that this is the scheduler's own thread: it may
  // have none at the moment.
  bool MayBeUsedHere() const {
    const Scheduler* current = Current();
    return current == this || (current == nullptr && !entered_.load(std::memory_order_relaxed));
  }

  // Never 0, and no other scheduler of the process has had it.
  uint64_t id() const { return id_; }
  // From any thread: whether the scheduler with that id exists.
  static bool Exists(uint64_t id);

  // A pointer that the scheduler's owner keeps here (a Runtime: to its Shard). Set before anything
  // runs, or on the scheduler's thread.
  void* attachment() const { return attachment_; }
  void set_attachment(void* attachment) { attachment_ = attachment; }

 protected:
  // Resumes up to `max` ready coroutines; those that become ready meanwhile go to the back of the
  // queue. Returns how many ran.
  size_t RunReady(size_t max);
  bool has_ready() const { return !ready_.empty(); }
  void set_now(TimePoint now) { now_ = now; }
  // Makes the next now() call ReadClock().
  void ForgetNow() { now_ = kUnread; }
  // Overridden by a scheduler that calls ForgetNow().
  virtual TimePoint ReadClock() const { return TimePoint{}; }

  // Makes a scheduler Current() for a scope; scopes nest.
  class VERBENA_EXPORT CurrentScope {
   public:
    explicit CurrentScope(Scheduler& scheduler);
    ~CurrentScope();

   private:
    Scheduler& scheduler_;
    Scheduler* const outer_;
    const bool entered_before_;
  };

 private:
  // No clock returns it.
  static constexpr TimePoint kUnread = internal::kBeforeAllTime;

  const uint64_t id_;
  std::atomic<bool> entered_{false};  // some thread is in a CurrentScope of this
  internal::IntrusiveList<internal::ReadyNode> ready_;
  // Of the coroutine that suspended last, until who resumed it looks. Valid only then: nobody else
  // reads it, and each ResumeAll() begins without.
  internal::ReadyNode* handed_over_ = nullptr;
  mutable TimePoint now_{};
  internal::TurnTicks ticks_;
  void* attachment_ = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_SCHEDULER_H_
