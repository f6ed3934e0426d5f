// Event: something that has happened, or not yet; any number of coroutines wait for it.
//
// Set() wakes every waiter and lets later ones pass until Reset(). Waiters are queued, never
// resumed inline. Wait() returns OK, or the reason when the coroutine's scope is cancelled. One
// thread; must outlive its waiters, each of which may be destroyed at any time. Bounded by its
// waiters, whose frames hold the links.
//
//   Event drained;
//   absl::Status waited = co_await drained.Wait();

#ifndef VERBENA_TRANSPORT_CORO_EVENT_H_
#define VERBENA_TRANSPORT_CORO_EVENT_H_

#include <concepts>
#include <coroutine>

#include "absl/status/status.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class Event {
 public:
  class [[nodiscard]] Awaiter final : public internal::Suspension,
                                      public internal::IntrusiveNode<Awaiter> {
   public:
    explicit Awaiter(Event& event) : event_(event) {}
    ~Awaiter() override = default;

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, internal::PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      if (Cancelled(coroutine) || event_.set_) return false;
      Suspend(coroutine);
      event_.waiters_.PushBack(*this);
      return true;
    }
    absl::Status await_resume() const { return cancel_status(); }

   private:
    friend class Event;
    void Detach() override { internal::IntrusiveNode<Awaiter>::Unlink(); }

    Event& event_;
  };

  void Set() {
    set_ = true;
    while (Awaiter* waiter = waiters_.PopFront()) waiter->Resume();
  }
  void Reset() { set_ = false; }
  bool is_set() const { return set_; }

  Awaiter Wait() { return Awaiter(*this); }

 private:
  internal::IntrusiveList<Awaiter> waiters_;
  bool set_ = false;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_EVENT_H_
