// TwoExecutors: a fixture with two executors on threads of their own. A test begins at home, and
// has Tasks run on the other.

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_TWO_EXECUTORS_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_TWO_EXECUTORS_H_

#include <memory>

#include "gtest/gtest.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {

class TwoExecutors : public testing::Test {
 protected:
  static std::unique_ptr<ExecutorThread> Start() {
    return *ExecutorThread::Start({.mode = ExecutorMode::kEvent});
  }
  // Returns when all that was posted to the executor before has begun, and all that was ready has
  // run once.
  static void PassThrough(Executor& executor) {
    const auto yield = []() -> Task<void> { (co_await Yield()).IgnoreError(); };
    BlockOn(executor, yield());
  }
  Executor& home() { return home_->executor(); }
  Executor& other() { return other_->executor(); }

  // `other` outlives `home`, as the caller of RunOn has to see to.
  std::unique_ptr<ExecutorThread> other_ = Start();
  std::unique_ptr<ExecutorThread> home_ = Start();
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_TWO_EXECUTORS_H_
