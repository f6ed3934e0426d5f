// ExecutorGate: a way to an executor that is open as long as its owner lives.
//
// Some objects may be dropped on any thread, and later than the executor. The owner of a gate lives
// on the executor, closes the gate as it ends, and shares it with such objects. They reach the
// executor by Post() alone. That is safe, because Close() waits for a Post() that is under way, and
// the executor outlives the gate's owner.
//
//   gate->Post([gate, owner] { if (gate->open()) owner->Forget(); });

#ifndef VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_GATE_H_
#define VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_GATE_H_

#include <mutex>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

class ExecutorGate {
 public:
  explicit ExecutorGate(Executor& executor) : executor_(&executor) {}
  ExecutorGate(const ExecutorGate&) = delete;
  ExecutorGate& operator=(const ExecutorGate&) = delete;

  // For the owner.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    executor_ = nullptr;
  }
  // For any thread: as Executor::PostFunction(). False, and `function` is destroyed, if the gate is
  // closed. The owner may end before the function runs.
  bool Post(absl::AnyInvocable<void()> function) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (executor_ == nullptr) return false;
    executor_->PostFunction(std::move(function));
    return true;
  }
  // Call it on the executor's thread: the owner closes the gate there, so the gate cannot close
  // meanwhile.
  bool open() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return executor_ != nullptr;
  }

 private:
  mutable std::mutex mutex_;
  Executor* executor_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_GATE_H_
