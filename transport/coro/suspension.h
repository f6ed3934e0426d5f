// Suspension: the part that all leaf awaits share, namely how a coroutine stops, hears of
// cancellation and is queued again.
//
// An awaiter derives from it. It lives in the awaiting coroutine's frame, so destroying the Task
// destroys it: a derived destructor takes it off whatever it waits on. One thread.
//
//   class SleepAwaiter : Suspension, Timer {
//     bool await_ready() { return false; }
//     template <typename P> bool await_suspend(std::coroutine_handle<P> h) {
//       if (!Suspend(h)) return false;           // cancelled already: goes on at once
//       scheduler().StartTimer(*this, when_);
//       return true;
//     }
//     absl::Status await_resume() { return cancel_status(); }

#ifndef VERBENA_TRANSPORT_CORO_SUSPENSION_H_
#define VERBENA_TRANSPORT_CORO_SUSPENSION_H_

#include <concepts>
#include <coroutine>

#include "absl/status/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class Suspension : public CancelNode {
 protected:
  // Records the coroutine. False when its scope was cancelled already: it must not suspend.
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool Suspend(std::coroutine_handle<Promise> coroutine) {
    return Suspend(coroutine.promise());
  }
  bool Suspend(PromiseBase& promise) {
    promise_ = &promise;
    CancelScope* cancel = promise_->cancel;
    if (cancel == nullptr) return true;
    if (cancel->requested()) {
      reason_ = cancel->reason();
      return false;
    }
    cancel->Add(*this);
    return true;
  }

  // Records the coroutine and tells whether its scope was cancelled already. For an await that may
  // find nothing to wait for: cancellation comes first, so that a loop over a queue which is never
  // empty ends.
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool Cancelled(std::coroutine_handle<Promise> coroutine) {
    return Cancelled(coroutine.promise());
  }
  bool Cancelled(PromiseBase& promise) {
    promise_ = &promise;
    if (promise_->cancel != nullptr) reason_ = promise_->cancel->reason();
    return reason_ != absl::StatusCode::kOk;
  }

  // Queues the coroutine. Called once per Suspend() that returned true; cancellation counts as the
  // call.
  void Resume() {
    CancelNode::Unlink();
    promise_->scheduler->Ready(*promise_);
  }

  // Instead of Resume(): returns the suspended coroutine, which the caller resumes in its own way.
  PromiseBase& Release() {
    CancelNode::Unlink();
    return *promise_;
  }

  // Called on cancellation before the coroutine is queued: take the awaiter off what it waits on.
  virtual void Detach() = 0;

  Scheduler& scheduler() const { return *promise_->scheduler; }
  // kOk unless the await ended by cancellation.
  absl::StatusCode cancel_reason() const { return reason_; }
  absl::Status cancel_status() const {
    return reason_ == absl::StatusCode::kOk ? absl::OkStatus() : CancelStatus(reason_);
  }

 private:
  void OnCancel(absl::StatusCode reason) final {
    reason_ = reason;
    Detach();
    Resume();
  }

  PromiseBase* promise_ = nullptr;
  absl::StatusCode reason_ = absl::StatusCode::kOk;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_SUSPENSION_H_
