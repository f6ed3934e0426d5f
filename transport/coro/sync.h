// Waits of coroutines for each other on one executor: Event, Semaphore, Mutex and Queue.
//
// No wait blocks a thread. Each object belongs to one executor, that of the first coroutine which
// awaits it, until that executor is destroyed. It outlives its waiters, any of which may be
// destroyed at any time. Waiters are queued, never resumed inline. The queues lie in the waiters'
// frames, and have no other bound. WhenAll, WhenAny and WithDeadline take each wait as it is:
//
//   auto next = co_await WhenAny(changes.Pop(), stopped.Wait());
//   absl::Status acquired = co_await WithDeadline(reads.Acquire(), 5ms);
//
//   precondition                                how it is checked            test
//   all awaits by coroutines of one executor    a check aborts               one_executor_test
//   who wakes a waiter is on its executor       a check aborts               one_executor_test
//   the other functions on that executor, too   VERBENA_DCHECK aborts        one_executor_test
//   Queue(capacity) with capacity > 0           a check aborts               queue_test
//   a Mutex is not destroyed locked             a check aborts               mutex_test
//   nobody waits when a Semaphore is destroyed  a check aborts               semaphore_test
//   nobody waits when a Queue is destroyed      a check aborts               queue_test

#ifndef VERBENA_TRANSPORT_CORO_SYNC_H_
#define VERBENA_TRANSPORT_CORO_SYNC_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// OneExecutor: the executor that an object of coroutines belongs to.
//
// Part of that object. The first coroutine that awaits the object sets it, and it holds until that
// executor is destroyed. Costs an await two loads and a compare.
class VERBENA_EXPORT OneExecutor {
 public:
  // A coroutine awaits the object, which is `what`: aborts if it is of another executor.
  void OnAwait(const PromiseBase& promise, const char* what) {
    if (id_ != promise.scheduler->id()) [[unlikely]]
      Become(*promise.scheduler, what);
  }
  // False inside the loop of another executor. For VERBENA_DCHECK.
  bool MayBeUsedHere() const;

 private:
  [[gnu::cold, gnu::noinline]] void Become(const Scheduler& scheduler, const char* what);

  uint64_t id_ = 0;  // the scheduler's; 0: nobody has awaited it yet
};

}  // namespace verbena::internal

namespace verbena {

// Event: something that has happened, or not yet; any number of coroutines wait for it.
//
// Set() wakes every waiter and lets later ones pass until Reset(). Waiters are queued, never
// resumed inline. Wait() returns OK, or the reason when the coroutine's scope is cancelled. One
// thread; must outlive its waiters, each of which may be destroyed at any time. Bounded by its
// waiters, in whose frames its queue lies.
//
//   Event drained;
//   absl::Status waited = co_await drained.Wait();
class Event {
 public:
  class [[nodiscard]] Awaiter final : public internal::Suspension,
                                      public internal::IntrusiveNode<Awaiter> {
   public:
    using value_type = absl::Status;
    static constexpr bool kBorrows = true;

    explicit Awaiter(Event& event) : event_(event) {}
    ~Awaiter() override = default;

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, internal::PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      event_.home_.OnAwait(coroutine.promise(), kWhat);
      if (Cancelled(coroutine) || event_.set_) return false;
      Suspend(coroutine);
      event_.waiters_.PushBack(*this);
      return true;
    }
    absl::Status await_resume() const { return cancel_status(); }

   private:
    friend class Event;
    friend internal::PartsAccess;
    internal::AwaitParts<Awaiter, Event&> Parts() && {
      return internal::AwaitParts<Awaiter, Event&>(event_);
    }
    void Detach() override { internal::IntrusiveNode<Awaiter>::Unlink(); }

    Event& event_;
  };

  void Set() {
    CheckHere();
    set_ = true;
    while (Awaiter* waiter = waiters_.PopFront()) waiter->ResumeAtHome(kWhat);
  }
  void Reset() {
    CheckHere();
    set_ = false;
  }
  bool is_set() const { return set_; }

  Awaiter Wait() { return Awaiter(*this); }

 private:
  static constexpr const char* kWhat = "an Event";

  void CheckHere() const {
    VERBENA_DCHECK(home_.MayBeUsedHere()) << "an Event is used on two executors";
  }

  internal::IntrusiveList<Awaiter> waiters_;
  bool set_ = false;
  internal::OneExecutor home_;
};

// Event::Wait() as a Task, for containers of Tasks. `event` must outlive it.
inline Task<absl::Status> WaitFor(Event& event) { co_return co_await event.Wait(); }

// Semaphore: a number of permits, handed out first come, first served.
//
// A waiter that asks for many permits is not overtaken by later waiters that ask for few. Release()
// queues waiters, never resumes inline. Acquire() returns OK, or the reason when the coroutine's
// scope is cancelled; it then holds nothing. A waiter that is destroyed gives up its place. If it
// was given permits but has not run since, it gives them back. One thread; must outlive its waiters
// and holders.
//
// An Acquire of more permits than will ever be released waits until it is cancelled.
//
//   Semaphore reads(64);
//   VERBENA_CO_RETURN_IF_ERROR(co_await reads.Acquire());
//   SemaphoreHold hold(reads);   // releases, also when the Task is destroyed
class VERBENA_EXPORT Semaphore {
 public:
  explicit Semaphore(size_t permits) : available_(permits) {}
  ~Semaphore() {
    VERBENA_CHECK(waiters_.empty()) << "a Semaphore was destroyed while somebody waits";
  }

  class [[nodiscard]] VERBENA_EXPORT Awaiter final : public internal::Suspension,
                                                     public internal::IntrusiveNode<Awaiter> {
   public:
    using value_type = absl::Status;
    static constexpr bool kBorrows = true;

    Awaiter(Semaphore& semaphore, size_t permits) : semaphore_(semaphore), permits_(permits) {}
    ~Awaiter() override;

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, internal::PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      semaphore_.home_.OnAwait(coroutine.promise(), kWhat);
      if (Cancelled(coroutine)) return false;
      served_ = semaphore_.TryAcquire(permits_);
      if (served_) return false;
      Suspend(coroutine);
      semaphore_.waiters_.PushBack(*this);
      return true;
    }
    absl::Status await_resume() {
      served_ = false;  // the caller's now
      return cancel_status();
    }

   private:
    friend class Semaphore;
    friend internal::PartsAccess;
    internal::AwaitParts<Awaiter, Semaphore&, size_t> Parts() && {
      return internal::AwaitParts<Awaiter, Semaphore&, size_t>(semaphore_, permits_);
    }
    void Detach() override { LeaveQueue(); }
    void LeaveQueue();

    Semaphore& semaphore_;
    const size_t permits_;
    bool served_ = false;  // it has the permits, and the coroutine has not taken them
  };

  Awaiter Acquire(size_t permits = 1) { return Awaiter(*this, permits); }
  // False when there are too few permits, or others wait already.
  bool TryAcquire(size_t permits = 1) {
    CheckHere();
    if (!waiters_.empty() || permits > available_) return false;
    available_ -= permits;
    return true;
  }
  void Release(size_t permits = 1) {
    CheckHere();
    available_ += permits;
    if (!waiters_.empty()) [[unlikely]]
      ServeWaiters();
  }

  size_t available() const { return available_; }

 private:
  static constexpr const char* kWhat = "a Semaphore or Mutex";

  void ServeWaiters();
  void CheckHere() const {
    VERBENA_DCHECK(home_.MayBeUsedHere()) << "a Semaphore or Mutex is used on two executors";
  }

  size_t available_;
  internal::IntrusiveList<Awaiter> waiters_;
  internal::OneExecutor home_;
};

// Permits that were acquired, released at the end of a scope. Must not outlive the semaphore.
class [[nodiscard]] SemaphoreHold {
 public:
  // The permits are the caller's already: this acquires none.
  explicit SemaphoreHold(Semaphore& semaphore, size_t permits = 1)
      : semaphore_(semaphore), permits_(permits) {}
  SemaphoreHold(const SemaphoreHold&) = delete;
  SemaphoreHold& operator=(const SemaphoreHold&) = delete;
  ~SemaphoreHold() { semaphore_.Release(permits_); }

 private:
  Semaphore& semaphore_;
  const size_t permits_;
};

class MutexLock;

// Mutex: one coroutine at a time, also across a co_await.
//
// For state of one executor that a coroutine changes in several steps with awaits between them.
// Without an await in between, coroutines of one executor need no lock. Waiters are served first
// come, first served, and are queued, never resumed inline. Lock() returns a MutexLock, which
// unlocks at the end of its scope, or the reason when the coroutine's scope is cancelled. A waiter
// that is destroyed gives up its place; if the lock was its already, the next waiter gets it.
// Allocates nothing. One thread. Must outlive its waiters and locks: a check aborts if it is
// destroyed locked. Not recursive: a coroutine that locks it twice waits until it is cancelled.
//
//   Mutex log_mutex;
//   VERBENA_CO_ASSIGN_OR_RETURN(const MutexLock lock, co_await log_mutex.Lock());
//   VERBENA_CO_RETURN_IF_ERROR(co_await Append(header));
//   VERBENA_CO_RETURN_IF_ERROR(co_await Append(body));   // nothing of others is between the two
class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  ~Mutex() { VERBENA_CHECK(!locked()) << "a Mutex was destroyed while somebody holds it"; }

  // The await of Lock().
  class [[nodiscard]] Awaiter final {
   public:
    using value_type = absl::StatusOr<MutexLock>;
    static constexpr bool kBorrows = true;

    explicit Awaiter(Mutex& mutex) : mutex_(mutex), permit_(mutex.permit_.Acquire()) {}

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, internal::PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      return permit_.await_suspend(coroutine);
    }
    absl::StatusOr<MutexLock> await_resume();

   private:
    friend internal::PartsAccess;
    internal::AwaitParts<Awaiter, Mutex&> Parts() && {
      return internal::AwaitParts<Awaiter, Mutex&>(mutex_);
    }

    Mutex& mutex_;
    Semaphore::Awaiter permit_;
  };

  // co_await gives absl::StatusOr<MutexLock>.
  Awaiter Lock() { return Awaiter(*this); }
  // None if it is locked.
  std::optional<MutexLock> TryLock();

  // True also while the lock is on its way to a waiter.
  bool locked() const { return permit_.available() == 0; }

 private:
  friend class MutexLock;

  Semaphore permit_{1};
};

// A locked Mutex, unlocked at the end of a scope. Move-only; on the mutex's thread.
class [[nodiscard]] MutexLock {
 public:
  MutexLock(MutexLock&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
  MutexLock& operator=(MutexLock&& other) noexcept {
    if (this != &other) {
      Unlock();
      mutex_ = std::exchange(other.mutex_, nullptr);
    }
    return *this;
  }
  ~MutexLock() { Unlock(); }

  // Unlocks before the end of the scope. Does nothing if it was unlocked or moved from.
  void Unlock() {
    Mutex* const mutex = std::exchange(mutex_, nullptr);
    if (mutex == nullptr) return;
    VERBENA_DCHECK(mutex->locked()) << "a Mutex was unlocked twice";
    mutex->permit_.Release();
  }

 private:
  friend class Mutex;
  // The mutex's permit is this object's now.
  explicit MutexLock(Mutex& mutex) : mutex_(&mutex) {}

  Mutex* mutex_;
};

inline absl::StatusOr<MutexLock> Mutex::Awaiter::await_resume() {
  VERBENA_RETURN_IF_ERROR(permit_.await_resume());
  return MutexLock(mutex_);
}

inline std::optional<MutexLock> Mutex::TryLock() {
  if (!permit_.TryAcquire()) return std::nullopt;
  return MutexLock(*this);
}

// Queue<T>: a bounded queue between coroutines of one thread.
//
// Push waits while it is full, Pop while it is empty; both are served first come, first served, and
// woken through the scheduler, never inline. Close() ends it: what was pushed can still be popped,
// then Pop returns OUT_OF_RANGE, as reading past an end does; Push returns FAILED_PRECONDITION.
// Both return the reason when the coroutine's scope is cancelled.
//
// No item is lost: an item belongs to the queue until the popping coroutine runs, so a popper that
// is destroyed on its way leaves it to the next. Push has happened once it returns OK; a pusher
// destroyed while it waits takes its item along. Must outlive its waiters.
//
//   Queue<Block> blocks(16);
//   absl::Status pushed = co_await blocks.Push(std::move(block));
//   absl::StatusOr<Block> block = co_await blocks.Pop();
template <std::movable T>
class Queue {
 public:
  class Pusher;
  class Popper;

  // At most `capacity` items, at least one. Allocates their memory here, and none later.
  explicit Queue(size_t capacity) : ring_(capacity) {
    VERBENA_CHECK(capacity > 0) << "a Queue without room would never pass an item on";
  }
  ~Queue() {
    VERBENA_CHECK(pushers_.empty() && poppers_.empty() && claimed_ == 0)
        << "a Queue was destroyed while somebody waits; " << claimed_
        << " of its items are claimed";
  }

  // co_await gives absl::Status.
  Pusher Push(T item) { return Pusher(*this, std::move(item)); }
  // co_await gives absl::StatusOr<T>.
  Popper Pop() { return Popper(*this); }

  // Takes `item` and returns true, or leaves it alone when the queue is full or closed.
  bool TryPush(T&& item);
  // None if the queue is empty, or if all its items are on their way to waiters.
  std::optional<T> TryPop();

  // Refuses further items, those of waiting pushers too. May be called again.
  void Close();

  bool closed() const { return closed_; }
  size_t size() const { return size_; }
  size_t capacity() const { return ring_.size(); }

 private:
  static constexpr const char* kWhat = "a Queue";

  void CheckHere() const {
    VERBENA_DCHECK(home_.MayBeUsedHere()) << "a Queue is used on two executors";
  }
  bool full() const { return size_ == ring_.size(); }
  // Items that no woken popper is on its way to fetch.
  bool has_unclaimed() const { return size_ > claimed_; }

  void Append(T&& item);
  T TakeFirst();
  // Moves the items of waiting pushers in while there is room, and wakes poppers while there are
  // items.
  void Settle();

  std::vector<std::optional<T>> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
  size_t claimed_ = 0;  // poppers woken that have not run; at most size_
  bool closed_ = false;
  internal::IntrusiveList<Pusher> pushers_;  // only while full
  internal::IntrusiveList<Popper> poppers_;  // only while every item is claimed
  internal::OneExecutor home_;
};

template <std::movable T>
class [[nodiscard]] Queue<T>::Pusher final : public internal::Suspension,
                                             public internal::IntrusiveNode<Pusher> {
 public:
  using value_type = absl::Status;
  static constexpr bool kBorrows = true;

  Pusher(Queue& queue, T item) : queue_(queue), item_(std::move(item)) {}
  ~Pusher() override = default;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    queue_.home_.OnAwait(coroutine.promise(), kWhat);
    if (Cancelled(coroutine)) return false;
    refused_ = queue_.closed_;
    if (refused_ || queue_.TryPush(std::move(item_))) return false;
    Suspend(coroutine);
    queue_.pushers_.PushBack(*this);
    return true;
  }
  absl::Status await_resume() const {
    return refused_ ? absl::FailedPreconditionError("queue is closed") : cancel_status();
  }

 private:
  friend class Queue;
  friend internal::PartsAccess;
  internal::AwaitParts<Pusher, Queue&, T> Parts() && {
    return internal::AwaitParts<Pusher, Queue&, T>(queue_, std::move(item_));
  }
  void Detach() override { internal::IntrusiveNode<Pusher>::Unlink(); }

  Queue& queue_;
  T item_;
  bool refused_ = false;
};

template <std::movable T>
class [[nodiscard]] Queue<T>::Popper final : public internal::Suspension,
                                             public internal::IntrusiveNode<Popper> {
 public:
  using value_type = absl::StatusOr<T>;
  static constexpr bool kBorrows = true;

  explicit Popper(Queue& queue) : queue_(queue) {}
  ~Popper() override {
    if (!claims_) return;
    VERBENA_DCHECK(queue_.claimed_ > 0);
    --queue_.claimed_;
    queue_.Settle();
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    queue_.home_.OnAwait(coroutine.promise(), kWhat);
    if (Cancelled(coroutine)) return false;
    if (queue_.has_unclaimed()) {
      Claim();
      return false;
    }
    if (queue_.closed_) return false;
    Suspend(coroutine);
    queue_.poppers_.PushBack(*this);
    return true;
  }
  absl::StatusOr<T> await_resume() {
    if (!claims_) {
      absl::Status cancelled = cancel_status();
      return cancelled.ok() ? absl::OutOfRangeError("queue is closed") : cancelled;
    }
    claims_ = false;
    --queue_.claimed_;
    return queue_.TakeFirst();
  }

 private:
  friend class Queue;
  friend internal::PartsAccess;
  internal::AwaitParts<Popper, Queue&> Parts() && {
    return internal::AwaitParts<Popper, Queue&>(queue_);
  }
  void Claim() {
    VERBENA_DCHECK(!claims_ && queue_.has_unclaimed())
        << queue_.claimed_ << " of " << queue_.size_ << " items are claimed";
    claims_ = true;
    ++queue_.claimed_;
  }
  void Detach() override { internal::IntrusiveNode<Popper>::Unlink(); }

  Queue& queue_;
  bool claims_ = false;  // one of the queue's items
};

template <std::movable T>
bool Queue<T>::TryPush(T&& item) {
  CheckHere();
  if (closed_ || full()) return false;
  Append(std::move(item));
  Settle();
  return true;
}

template <std::movable T>
std::optional<T> Queue<T>::TryPop() {
  CheckHere();
  if (!has_unclaimed()) return std::nullopt;
  return TakeFirst();
}

template <std::movable T>
void Queue<T>::Close() {
  CheckHere();
  closed_ = true;
  while (Pusher* pusher = pushers_.PopFront()) {
    pusher->refused_ = true;
    pusher->ResumeAtHome(kWhat);
  }
  while (Popper* popper = poppers_.PopFront()) popper->ResumeAtHome(kWhat);
}

template <std::movable T>
void Queue<T>::Append(T&& item) {
  VERBENA_DCHECK(!full()) << size_ << " items";
  ring_[(first_ + size_) % ring_.size()].emplace(std::move(item));
  ++size_;
}

template <std::movable T>
T Queue<T>::TakeFirst() {
  VERBENA_DCHECK(has_unclaimed()) << claimed_ << " of " << size_ << " items are claimed";
  T item = std::move(*ring_[first_]);
  ring_[first_].reset();
  first_ = (first_ + 1) % ring_.size();
  --size_;
  Settle();
  return item;
}

template <std::movable T>
void Queue<T>::Settle() {
  while (!full()) {
    Pusher* pusher = pushers_.PopFront();
    if (pusher == nullptr) break;
    Append(std::move(pusher->item_));
    pusher->ResumeAtHome(kWhat);
  }
  while (has_unclaimed()) {
    Popper* popper = poppers_.PopFront();
    if (popper == nullptr) break;
    popper->Claim();
    popper->ResumeAtHome(kWhat);
  }
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_SYNC_H_
