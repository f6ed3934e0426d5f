#include "verbena/transport/executor/run_on.h"

#include <thread>

#include "verbena/transport/base/check.h"

namespace verbena::internal {

void RemoteTask::TakeContext(const CancelScope& scope) {
  VERBENA_CHECK(home_scheduler_ == nullptr) << "the task may run by now";
  scope_.LimitDeadline(scope.deadline());
  scope_.set_client(scope.client());
  // A copy of its own: references to a trace belong to one thread.
  if (scope.trace() != nullptr) scope_.set_trace(*scope.trace());
}

void RemoteTask::LaunchFrom(Scheduler& home_scheduler, Waiter& waiter, Executor& other) {
  home_scheduler_ = &home_scheduler;
  waiter_ = &waiter;
  Launch(other);
}

void RemoteTask::Cancel(absl::StatusCode reason) {
  VERBENA_CHECK(cancel_reason_ == absl::StatusCode::kOk && !result_arrived_)
      << "a task is cancelled twice, or after its result is there: " << cancel_reason_;
  // A later request would be in vain, and the executor may be gone.
  if (state_.load(std::memory_order_acquire) != State::kRunning) return;
  cancel_reason_ = reason;
  references_.fetch_add(1, std::memory_order_relaxed);
  executor().Post(cancel_message_);
}

void RemoteTask::LeaveHome() {
  waiter_ = nullptr;
  if (Move(State::kAbandoned)) {
    // The message takes over the home's reference.
    executor().Post(leave_message_);
    return;
  }
  // The home's executor may be destroyed once this returns. By then the result must be in its
  // inbox, which its destructor empties.
  while (state_.load(std::memory_order_acquire) == State::kReturning) std::this_thread::yield();
  const bool result_is_under_way =
      state_.load(std::memory_order_acquire) == State::kReturned && !result_arrived_;
  if (!result_is_under_way) Drop();
}

void RemoteTask::OnResultArrived() {
  VERBENA_CHECK(!result_arrived_) << "a result arrives twice";
  result_arrived_ = true;
  if (waiter_ != nullptr) {
    waiter_->OnReturned();
  } else {
    Drop();
  }
}

void RemoteTask::OnTaskDone() {
  KeepResult();
  EndTask();
  const Reference remote_side(*this);
  if (!Move(State::kReturning)) return;
  home_scheduler_->Post(result_message_);
  state_.store(State::kReturned, std::memory_order_release);
}

void RemoteTask::Abandon() {
  EndTask();
  const Reference remote_side(*this);
  Move(State::kLost);
}

void RemoteTask::OnCancelRequested() {
  const Reference message(*this);
  if (alive_) scope_.Request(cancel_reason_);
}

void RemoteTask::OnHomeLeft() {
  const Reference message(*this);
  if (!alive_) return;
  EndTask();
  Drop();
}

void RemoteTask::EndTask() {
  VERBENA_CHECK(alive_) << "a task ends twice";
  IntrusiveNode<RootTask>::Unlink();
  alive_ = false;
  DestroyTask();
}

bool RemoteTask::Move(State to) {
  State running = State::kRunning;
  return state_.compare_exchange_strong(running, to, std::memory_order_acq_rel);
}

void RemoteTask::Drop() {
  const int references = references_.fetch_sub(1, std::memory_order_acq_rel);
  VERBENA_CHECK(references > 0) << references;
  if (references == 1) delete this;
}

}  // namespace verbena::internal
