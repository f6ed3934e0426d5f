// Abandonable: a Task that runs though nobody awaits it, and that the test may destroy at any time.
//
// Destroying it is abandonment, as when a caller's own coroutine is destroyed. On the executor that
// it was started on.
//
//   const Abandonable read(client_runtime_->executor(0), ReadInto(stream, item));
//   while (!read.ended()) (void)co_await Yield();

#ifndef VERBENA_TESTS_RPC_ABANDONABLE_H_
#define VERBENA_TESTS_RPC_ABANDONABLE_H_

#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class Abandonable final : private internal::TaskListener {
 public:
  Abandonable(Scheduler& scheduler, Task<absl::Status> task) : task_(std::move(task)) {
    task_.Start(scheduler, nullptr, this);
  }
  Abandonable(const Abandonable&) = delete;
  Abandonable& operator=(const Abandonable&) = delete;
  bool ended() const { return ended_; }

 private:
  void OnTaskDone() override { ended_ = true; }

  Task<absl::Status> task_;
  bool ended_ = false;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_ABANDONABLE_H_
