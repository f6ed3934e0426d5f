// Watched: a value that any thread sets, and for which coroutines wait, each on its own scheduler.
//
// A test's service holds one where it would hold an atomic. A handler waits until the test lets it
// go, and a test waits until so many handlers have begun: neither polls. The value must outlive
// those who wait. A change wakes everybody who waits, so use it in small tests, not in floods.
//
//   Watched<int> begun;
//   Watched<bool> may_end;
//   ++begun;                                                  // in the handler
//   VERBENA_CO_RETURN_IF_ERROR(co_await may_end.Until(true));
//   (void)co_await begun.Until([](int n) { return n == 3; });  // in the test
//   may_end = true;

#ifndef VERBENA_TESTS_SUPPORT_WATCHED_H_
#define VERBENA_TESTS_SUPPORT_WATCHED_H_

#include <concepts>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

template <typename T>
class Watched {
 public:
  Watched() = default;
  explicit Watched(T value) : value_(value) {}
  Watched(const Watched&) = delete;

  // From any thread.
  T load() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  operator T() const { return load(); }  // NOLINT(google-explicit-constructor): as of an atomic
  T operator=(T value) {                 // NOLINT(misc-unconventional-assign-operator): likewise
    return Change([value](T) { return value; });
  }
  T operator++() {
    return Change([](T value) { return value + 1; });
  }
  T operator--() {
    return Change([](T value) { return value - 1; });
  }

  // Waits until `holds` says yes of the value. Returns OK, or the reason if the scope is cancelled.
  template <std::predicate<T> Condition>
  Task<absl::Status> Until(Condition holds) {
    const TaskContext context = co_await CurrentContext();
    for (;;) {
      const Place place{*this, *context.scheduler};
      if (place.Enter(holds)) co_return absl::OkStatus();
      if (absl::Status waited = co_await place.woken(); !waited.ok()) co_return waited;
    }
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> Until(T value) {
    return Until([value](T now) { return now == value; });
  }

 private:
  // Somebody who waits: for the next change, whatever it is. Posted at most once, and keeps itself
  // until the scheduler has run it, also if nobody waits any more.
  class Waiter final : public internal::InboxItem {
   public:
    explicit Waiter(Scheduler& home) : home_(home) {}
    void Wake(std::shared_ptr<Waiter> self) {
      self_ = std::move(self);
      home_.Post(*this);
    }
    Event& woken() { return woken_; }

   private:
    void Run() override {
      const std::shared_ptr<Waiter> self = std::move(self_);
      woken_.Set();
    }

    Scheduler& home_;
    std::shared_ptr<Waiter> self_;
    Event woken_;
  };

  // The waiter's place among those to wake, for as long as its coroutine is there.
  class Place {
   public:
    Place(Watched& watched, Scheduler& home)
        : watched_(watched), waiter_(std::make_shared<Waiter>(home)) {}
    Place(const Place&) = delete;
    ~Place() {
      const std::lock_guard lock(watched_.mutex_);
      std::erase(watched_.waiters_, waiter_);
    }
    // True: the condition holds. Otherwise the next change wakes the waiter.
    template <typename Condition>
    bool Enter(Condition& holds) const {
      const std::lock_guard lock(watched_.mutex_);
      if (holds(watched_.value_)) return true;
      watched_.waiters_.push_back(waiter_);
      return false;
    }
    Event::Awaiter woken() const { return waiter_->woken().Wait(); }

   private:
    Watched& watched_;
    const std::shared_ptr<Waiter> waiter_;
  };

  template <typename Function>
  T Change(Function next) {
    // Posts under the lock: a waiter whose place is gone may have no scheduler any more.
    const std::lock_guard lock(mutex_);
    value_ = static_cast<T>(next(value_));
    for (std::shared_ptr<Waiter>& each : std::exchange(waiters_, {})) {
      Waiter& waiter = *each;
      waiter.Wake(std::move(each));
    }
    return value_;
  }

  mutable std::mutex mutex_;
  T value_{};
  std::vector<std::shared_ptr<Waiter>> waiters_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_WATCHED_H_
