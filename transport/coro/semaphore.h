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

#ifndef VERBENA_TRANSPORT_CORO_SEMAPHORE_H_
#define VERBENA_TRANSPORT_CORO_SEMAPHORE_H_

#include <concepts>
#include <coroutine>
#include <cstddef>

#include "absl/status/status.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class Semaphore {
 public:
  explicit Semaphore(size_t permits) : available_(permits) {}

  class [[nodiscard]] Awaiter final : public internal::Suspension,
                                      public internal::IntrusiveNode<Awaiter> {
   public:
    Awaiter(Semaphore& semaphore, size_t permits) : semaphore_(semaphore), permits_(permits) {}
    ~Awaiter() override;

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, internal::PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      if (Cancelled(coroutine) || semaphore_.TryAcquire(permits_)) return false;
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
    void Detach() override { LeaveQueue(); }
    void LeaveQueue();

    Semaphore& semaphore_;
    const size_t permits_;
    bool served_ = false;  // and the coroutine has not run since
  };

  Awaiter Acquire(size_t permits = 1) { return Awaiter(*this, permits); }
  // False when there are too few permits, or others wait already.
  bool TryAcquire(size_t permits = 1);
  void Release(size_t permits = 1);

  size_t available() const { return available_; }

 private:
  void ServeWaiters();

  size_t available_;
  internal::IntrusiveList<Awaiter> waiters_;
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

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_SEMAPHORE_H_
