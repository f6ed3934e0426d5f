// Started<T>: a Task run by hand, for tests that look at it while it waits, or destroy it.
//
//   Started waiting(scheduler, Wait(event));
//   scheduler.RunUntilIdle();
//   EXPECT_FALSE(waiting.done());
//   waiting.Abandon();

#ifndef VERBENA_TESTS_TRANSPORT_CORO_STARTED_H_
#define VERBENA_TESTS_TRANSPORT_CORO_STARTED_H_

#include <utility>

#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

template <typename T>
class Started final : private TaskListener {
 public:
  Started(Scheduler& scheduler, Task<T> task, CancelScope* cancel = nullptr)
      : task_(std::move(task)) {
    task_.Start(scheduler, cancel, this);
  }

  bool done() const { return done_; }
  T result() { return task_.TakeResult(); }
  void Abandon() { task_ = Task<T>(); }

 private:
  void OnTaskDone() override { done_ = true; }

  bool done_ = false;
  Task<T> task_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_CORO_STARTED_H_
