// Sleep and SleepUntil: wait for a time.
//
// They return OK once the time has come, or the reason (CANCELLED, DEADLINE_EXCEEDED) when the
// coroutine's scope is cancelled first. A time that has come already does not suspend: to let
// others run, Yield. Time is the scheduler's, which stands still during one turn of its loop.
//
//   absl::Status slept = co_await Sleep(5ms);

#ifndef VERBENA_TRANSPORT_CORO_SLEEP_H_
#define VERBENA_TRANSPORT_CORO_SLEEP_H_

#include <concepts>
#include <coroutine>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

// Waits until `when`; kNever waits for cancellation alone.
class [[nodiscard]] SleepUntil : public internal::Suspension, private internal::Timer {
 public:
  using value_type = absl::Status;

  explicit SleepUntil(TimePoint when) : until_(when) {}
  ~SleepUntil() override { Stop(); }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return SuspendUntil(coroutine, until_);
  }
  absl::Status await_resume() const { return cancel_status(); }

 protected:
  template <typename Promise>
  bool SuspendUntil(std::coroutine_handle<Promise> coroutine, TimePoint when) {
    if (Cancelled(coroutine) || when <= scheduler().now()) return false;
    Suspend(coroutine);
    if (when != kNever) {
      scheduler().StartTimer(*this, when);
      running_ = true;
    }
    return true;
  }

 private:
  friend internal::PartsAccess;
  internal::AwaitParts<SleepUntil, TimePoint> Parts() && {
    return internal::AwaitParts<SleepUntil, TimePoint>(until_);
  }
  void OnTimer() final {
    running_ = false;
    Resume();
  }
  void Detach() final { Stop(); }
  void Stop() {
    if (!running_) return;
    running_ = false;
    scheduler().StopTimer(*this);
  }

  const TimePoint until_;
  bool running_ = false;
};

// Waits for `delay`, counted from the scheduler's time when it is awaited.
class [[nodiscard]] Sleep final : public SleepUntil {
 public:
  explicit Sleep(Duration delay) : SleepUntil(kNever), delay_(delay) {}

  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return SuspendUntil(coroutine, SaturatingAdd(coroutine.promise().scheduler->now(), delay_));
  }

 private:
  friend internal::PartsAccess;
  internal::AwaitParts<Sleep, Duration> Parts() && {
    return internal::AwaitParts<Sleep, Duration>(delay_);
  }

  const Duration delay_;
};

// Yield: lets every coroutine that is ready now run first.
//
// For loops that compute, which would otherwise hold the executor. Returns OK, or the reason when
// the coroutine's scope was cancelled; it yields in either case.
//
//   while (hasher.Step()) {
//     VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
//   }
class [[nodiscard]] Yield {
 public:
  using value_type = absl::Status;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    promise_ = &coroutine.promise();
    promise_->scheduler->Ready(*promise_);
  }
  absl::Status await_resume() const {
    return promise_->cancel == nullptr ? absl::OkStatus() : promise_->cancel->status();
  }
  // The same as a Task, which WhenAll and WhenAny make by themselves.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> AsTask() && {
    return YieldLater();
  }

 private:
  static Task<absl::Status> YieldLater() { co_return co_await Yield(); }

  internal::PromiseBase* promise_ = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_SLEEP_H_
