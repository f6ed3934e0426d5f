// RunBlocking runs callables on a bounded pool of threads and resumes on the executor. If the
// caller is cancelled or destroyed, the callable never begins, or ends before the caller's
// variables are destroyed.

#include "verbena/transport/executor/blocking.h"

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/asleep.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena {
namespace run_blocking_test {

class RunBlockingTest : public testing::Test {
 protected:
  static std::unique_ptr<ExecutorThread> Start(BlockingPool& pool) {
    return *ExecutorThread::Start({.name = "run_blocking", .blocking_pool = &pool});
  }
  Executor& executor() { return thread_->executor(); }

  BlockingPool pool_{2};
  std::unique_ptr<ExecutorThread> thread_ = Start(pool_);
};

TEST_F(RunBlockingTest, RunsOnAThreadOfThePoolAndResumesOnTheExecutor) {
  const auto task = [&]() -> Task<bool> {
    const std::thread::id here = std::this_thread::get_id();
    const std::thread::id there = co_await RunBlocking([] { return std::this_thread::get_id(); });
    co_return here != there&& std::this_thread::get_id() == here&& Scheduler::Current() ==
        &executor();
  };
  EXPECT_TRUE(BlockOn(executor(), task()));
}

TEST_F(RunBlockingTest, AnExecutorWithoutAPoolUsesTheProcessesOwn) {
  auto thread = *ExecutorThread::Start();
  const auto task = []() -> Task<int> { co_return co_await RunBlocking([] { return 7; }); };
  EXPECT_EQ(BlockOn(thread->executor(), task()), 7);
}

TEST_F(RunBlockingTest, AnExceptionOfTheCallableComesOutOfTheAwait) {
  const auto task = []() -> Task<void> {
    co_await RunBlocking([] { throw std::runtime_error("thrown on the pool"); });
  };
  EXPECT_THROW(BlockOn(executor(), task()), std::runtime_error);
}

TEST_F(RunBlockingTest, MoveOnlyCapturesAndResultsPassThrough) {
  const auto task = []() -> Task<int> {
    auto given = std::make_unique<int>(7);
    const std::unique_ptr<int> back =
        co_await RunBlocking([given = std::move(given)]() mutable { return std::move(given); });
    co_return *back;
  };
  EXPECT_EQ(BlockOn(executor(), task()), 7);
}

// The executor goes on with other work while a callable blocks.
TEST_F(RunBlockingTest, TheExecutorRunsOnWhileACallableBlocks) {
  std::latch let_go(1);
  const auto task = [&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    scope.Spawn([&]() -> Task<> { co_await RunBlocking([&] { let_go.wait(); }); });
    scope.Spawn([&]() -> Task<> {
      (void)co_await Yield();
      let_go.count_down();
    });
    co_await scope.Join();
  };
  BlockOn(executor(), task());
}

TEST_F(RunBlockingTest, AtMostMaxThreadsCallablesRunAtOnceAndTheOthersWait) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  const auto work = [&]() -> Task<> {
    co_await RunBlocking([&] {
      const int now = ++running;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::yield();
      --running;
    });
  };
  const auto task = [&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    for (int i = 0; i < 200; ++i) scope.Spawn(work());
    co_await scope.Join();
  };
  BlockOn(executor(), task());
  EXPECT_LE(most, 2);
  EXPECT_LE(pool_.threads(), 2);
  EXPECT_EQ(pool_.queued(), 0u);
}

TEST_F(RunBlockingTest, NoThreadStartsBeforeTheFirstCallable) { EXPECT_EQ(pool_.threads(), 0); }

// Occupies the only thread of a pool until it is let go.
class Occupied {
 public:
  explicit Occupied(Executor& executor) : executor_(executor) {}
  // Runs `task` on the executor while the pool's only thread is occupied.
  template <typename T>
  T Run(Task<T> task) {
    return BlockOn(executor_, Beside(std::move(task)));
  }

 private:
  template <typename T>
  Task<T> Beside(Task<T> task) {
    TaskScope scope(co_await CurrentContext());
    scope.Spawn([this]() -> Task<> {
      co_await RunBlocking([this] {
        began_.count_down();
        let_go_.wait();
      });
    });
    (void)co_await Yield();
    began_.wait();
    T result = co_await std::move(task);
    let_go_.count_down();
    co_await scope.Join();
    co_return result;
  }

  Executor& executor_;
  std::latch began_{1};
  std::latch let_go_{1};
};

// One thread, so that a second callable waits in the queue.
class RunBlockingQueueTest : public testing::Test {
 protected:
  Executor& executor() { return thread_->executor(); }
  BlockingPool pool_{1};
  std::unique_ptr<ExecutorThread> thread_ = *ExecutorThread::Start({.blocking_pool = &pool_});
};

TEST_F(RunBlockingQueueTest, ACallableThatHasNotBegunIsTakenBackByACancellation) {
  std::atomic<bool> ran = false;
  const auto cancelled = [&]() -> Task<absl::Status> {
    CancelScope scope;
    std::optional<absl::Status> result;
    TaskScope tasks(co_await CurrentContext());
    const auto wait = [&]() -> Task<absl::Status> {
      co_return co_await RunBlocking([&] {
        ran = true;
        return absl::OkStatus();
      });
    };
    tasks.Spawn([&]() -> Task<> { result = co_await wait().In(&scope); });
    (void)co_await Yield();
    EXPECT_EQ(pool_.queued(), 1u);
    scope.Request();
    co_await tasks.Join();
    co_return *result;
  };
  EXPECT_EQ(Occupied(executor()).Run(cancelled()).code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(ran);
}

TEST_F(RunBlockingQueueTest, ClientsTakeTurns) {
  std::vector<uint64_t> order;
  std::latch let_go(1);
  const auto note = [&](uint64_t client) -> Task<> {
    co_await RunBlocking([&order, client] { order.push_back(client); });
  };
  const auto all = [&]() -> Task<> {
    std::array<CancelScope, 3> scopes;
    for (size_t i = 0; i < scopes.size(); ++i) scopes[i].set_client(i);
    TaskScope tasks(co_await CurrentContext());
    tasks.Spawn([&]() -> Task<> { co_await RunBlocking([&] { let_go.wait(); }); });
    for (const uint64_t client : {1, 1, 1, 2, 1, 0, 2}) {
      tasks.Spawn([&, client]() -> Task<> { co_await note(client).In(&scopes[client]); });
    }
    (void)co_await Yield();
    let_go.count_down();
    co_await tasks.Join();
  };
  BlockOn(executor(), all());
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 0, 1, 2, 1, 1}));
}

TEST_F(RunBlockingQueueTest, ACallableOfACancelledCoroutineNeverBegins) {
  const auto task = [&]() -> Task<absl::Status> {
    CancelScope scope;
    scope.Request(absl::StatusCode::kDeadlineExceeded);
    const auto wait = []() -> Task<absl::Status> {
      co_return co_await RunBlocking([]() -> absl::Status { throw std::logic_error("ran"); });
    };
    co_return co_await wait().In(&scope);
  };
  EXPECT_EQ(BlockOn(executor(), task()).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RunBlockingQueueTest, ACallableThatHasBegunEndsBeforeItsCancelledCallerResumes) {
  std::latch began(1);
  std::latch let_go(1);
  const auto task = [&]() -> Task<absl::StatusOr<int>> {
    CancelScope scope;
    absl::StatusOr<int> result = 0;
    TaskScope tasks(co_await CurrentContext());
    const auto wait = [&]() -> Task<absl::StatusOr<int>> {
      co_return co_await RunBlocking([&]() -> absl::StatusOr<int> {
        began.count_down();
        let_go.wait();
        return 7;
      });
    };
    tasks.Spawn([&]() -> Task<> { result = co_await wait().In(&scope); });
    (void)co_await Yield();
    began.wait();
    scope.Request();
    let_go.count_down();
    co_await tasks.Join();
    co_return result;
  };
  EXPECT_EQ(BlockOn(executor(), task()).value_or(0), 7);
}

TEST_F(RunBlockingQueueTest, AnAbandonedCallableThatHasNotBegunNeverRuns) {
  std::atomic<bool> ran = false;
  const auto abandon = [&]() -> Task<int> {
    {
      TaskScope tasks(co_await CurrentContext());
      tasks.Spawn([&]() -> Task<> { co_await RunBlocking([&] { ran = true; }); });
      (void)co_await Yield();
    }
    EXPECT_EQ(pool_.queued(), 0u);
    co_return 0;
  };
  (void)Occupied(executor()).Run(abandon());
  EXPECT_FALSE(ran);
}

// The callable refers to a variable of the coroutine that is destroyed.
TEST_F(RunBlockingQueueTest, AnAbandonedCallableThatRunsKeepsItsVariablesUntilItHasEnded) {
  std::latch began(1);
  std::latch abandoning(1);
  std::atomic<pid_t> abandoner = 0;
  std::atomic<bool> ended = false;
  std::atomic<bool> gone_too_early = false;
  struct Variable {
    ~Variable() { gone = true; }
    std::atomic<bool>& gone;
  };
  std::atomic<bool> gone = false;
  const auto work = [&]() -> Task<> {
    Variable variable{gone};
    co_await RunBlocking([&] {
      began.count_down();
      abandoning.wait();
      while (!gone && !IsAsleep(abandoner)) std::this_thread::yield();
      gone_too_early = gone.load();
      ended = true;
    });
  };
  const auto abandon = [&]() -> Task<void> {
    {
      TaskScope tasks(co_await CurrentContext());
      tasks.Spawn(work());
      (void)co_await Yield();
      began.wait();
      abandoner = gettid();
      abandoning.count_down();
    }
    EXPECT_TRUE(ended);
  };
  BlockOn(executor(), abandon());
  EXPECT_FALSE(gone_too_early);
}

TEST_F(RunBlockingQueueTest, AnExecutorMayBeDestroyedWhileCallablesRunAndWait) {
  std::latch began(1);
  std::atomic<int> ended = 0;
  const auto work = [&]() -> Task<> {
    co_await RunBlocking([&] {
      if (ended == 0) began.count_down();
      ++ended;
    });
  };
  for (int i = 0; i < 10; ++i) Spawn(executor(), work());
  began.wait();
  thread_.reset();
  EXPECT_GE(ended, 1);
  EXPECT_EQ(pool_.queued(), 0u);
}

TEST(BlockingPoolDeathTest, APoolWithoutThreadsAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(BlockingPool(0), "max_threads");
}

}  // namespace run_blocking_test
}  // namespace verbena
