// Shared parts of the executor's tests.

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/options.h"
#include "verbena/transport/executor/spawn.h"

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

// A clock that stands still until the test moves it, and counts its readings. For one thread.
class CountingClock final : public Clock {
 public:
  TimePoint Now() override {
    ++reads;
    return now;
  }
  TimePoint now{std::chrono::seconds(1000)};
  int reads = 0;
};

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

inline Task<void> SleepThenStop(Executor& executor, Duration delay) {
  absl::Status slept = co_await Sleep(delay);
  EXPECT_TRUE(slept.ok());
  executor.Stop();
}

// Runs until a timer, and again with a later one if the thread was so slow that the timer was due
// before the executor could sleep. Returns what the run that slept added to `stats()`: its turns
// and sleeps.
inline ExecutorStats SleepOnce(Executor& executor) {
  for (Duration delay = std::chrono::milliseconds(1);; delay *= 2) {
    const ExecutorStats before = executor.stats();
    Spawn(executor, SleepThenStop(executor, delay));
    executor.Run();
    const ExecutorStats& after = executor.stats();
    if (after.sleeps == before.sleeps) continue;
    return {.turns = after.turns - before.turns, .sleeps = after.sleeps - before.sleeps};
  }
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_
