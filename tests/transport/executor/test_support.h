// Shared parts of the executor's tests.

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <infiniband/verbs.h>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/options.h"

namespace verbena::internal {

// Each test that sleeps is built once per Waiter.
#ifdef VERBENA_TEST_IO_URING
inline constexpr WaiterKind kTestedWaiter = WaiterKind::kIoUring;
inline constexpr const char* kTestedWaiterName = "io_uring";
#else
inline constexpr WaiterKind kTestedWaiter = WaiterKind::kEpoll;
inline constexpr const char* kTestedWaiterName = "epoll";
#endif

// Skips the test, with the reason, if the kernel does not allow the tested Waiter.
#define VERBENA_SKIP_WITHOUT_TESTED_WAITER()            \
  if (absl::StatusOr<std::unique_ptr<Executor>> tried = \
          Executor::Create({.waiter = kTestedWaiter});  \
      !tried.ok()) {                                    \
    GTEST_SKIP() << tried.status();                     \
  }

// Keeps the wr_ids of completions, and how many came at once.
class NotedCompletions final : public CompletionListener {
 public:
  void OnCompletions(const ibv_wc* completions, int count) override {
    batches.push_back(count);
    for (int i = 0; i < count; ++i) wr_ids.push_back(completions[i].wr_id);
  }
  std::vector<uint64_t> wr_ids;
  std::vector<int> batches;
};

// A timer of an executor, which calls `then` each time that it fires: an event to wait for. For the
// thread that drives the executor.
class TestTimer final : public Timer {
 public:
  TestTimer(Executor& executor, std::function<void()> then)
      : executor_(executor), then_(std::move(then)) {}
  TestTimer(const TestTimer&) = delete;
  ~TestTimer() override {
    if (runs_) executor_.StopTimer(*this);
  }

  void Start(Duration delay) {
    runs_ = true;
    executor_.StartTimer(*this, executor_.now() + delay);
  }

 private:
  void OnTimer() override {
    runs_ = false;
    then_();
  }

  Executor& executor_;
  const std::function<void()> then_;
  bool runs_ = false;
};

// Runs until a timer, and again with a later one if the thread was so slow that the timer was due
// before the executor could sleep. Returns what the run that slept added to `stats()`: its turns
// and sleeps.
inline ExecutorStats SleepOnce(Executor& executor) {
  for (Duration delay = std::chrono::milliseconds(1);; delay *= 2) {
    const ExecutorStats before = executor.stats();
    TestTimer timer(executor, [&] { executor.Stop(); });
    timer.Start(delay);
    executor.Run();
    const ExecutorStats& after = executor.stats();
    if (after.sleeps == before.sleeps) continue;
    return {.turns = after.turns - before.turns, .sleeps = after.sleeps - before.sleeps};
  }
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_
