// Shared parts of the executor's tests.

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

#include "absl/status/statusor.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/executor_options.h"

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

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_TEST_SUPPORT_H_
