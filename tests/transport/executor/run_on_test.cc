// RunOn runs a Task on another executor and resumes at home with its result. Cancellation and
// destruction at any stage, on either side, reach the Task and leak nothing.

#include "verbena/transport/executor/run_on.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/executor/two_executors.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena {
namespace run_on_test {

using RunOnTest = internal::TwoExecutors;

Task<Scheduler*> WhereItRuns() { co_return Scheduler::Current(); }

Task<absl::Status> GoAndComeBack(Executor& home, Executor& other) {
  Scheduler* there = co_await RunOn(other, WhereItRuns());
  if (there != &other) co_return absl::InternalError("ran elsewhere");
  if (Scheduler::Current() != &home) co_return absl::InternalError("resumed elsewhere");
  co_return absl::OkStatus();
}

TEST_F(RunOnTest, RunsThereAndResumesHere) {
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(BlockOn(home(), GoAndComeBack(home(), other())), absl::OkStatus());
  }
}

TEST_F(RunOnTest, OnTheSameExecutorItIsAPlainAwait) {
  const auto items = [&]() -> Task<uint64_t> { co_return home().stats().inbox_items; };
  const auto run = [&]() -> Task<uint64_t> {
    const uint64_t before = home().stats().inbox_items;
    const uint64_t inside = co_await RunOn(home(), items());
    co_return inside - before;
  };
  EXPECT_EQ(BlockOn(home(), run()), 0u);
}

Task<void> Throw() {
  throw std::runtime_error("thrown there");
  co_return;
}
Task<absl::Status> CatchHere(Executor& other) {
  try {
    co_await RunOn(other, Throw());
  } catch (const std::runtime_error& error) {
    co_return absl::AbortedError(error.what());
  }
  co_return absl::OkStatus();
}

TEST_F(RunOnTest, AnExceptionComesOutOfTheAwait) {
  EXPECT_EQ(BlockOn(home(), CatchHere(other())), absl::AbortedError("thrown there"));
}

Task<std::unique_ptr<int>> MoveOnly() { co_return std::make_unique<int>(7); }

TEST_F(RunOnTest, MoveOnlyResultsComeBack) {
  EXPECT_EQ(*BlockOn(home(), RunOn(other(), MoveOnly())), 7);
}

// --- Cancellation --------------------------------------------------------------------------------

Task<absl::Status> SleepForEver(std::atomic<bool>& started) {
  started = true;
  started.notify_all();
  co_return co_await SleepUntil(kNever);
}

Task<absl::Status> RunInScope(CancelScope& scope, Task<absl::Status> task) {
  co_return co_await std::move(task).In(&scope);
}

TEST_F(RunOnTest, CancellingTheAwaitCancelsTheTaskThereWhichThenEnds) {
  CancelScope scope;
  std::atomic<bool> started = false;
  std::thread canceller([&] {
    started.wait(false);
    home().PostFunction([&] { scope.Request(absl::StatusCode::kDeadlineExceeded); });
  });
  absl::Status status = BlockOn(home(), RunInScope(scope, RunOn(other(), SleepForEver(started))));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  canceller.join();
}

TEST_F(RunOnTest, ATaskWhoseCallerIsCancelledAlreadyRunsCancelled) {
  CancelScope scope;
  scope.Request();
  std::atomic<bool> started = false;
  absl::Status status = BlockOn(home(), RunInScope(scope, RunOn(other(), SleepForEver(started))));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(started);
}

Task<absl::Status> YieldTimes(int times) {
  for (int i = 0; i < times; ++i) static_cast<void>(co_await Yield());
  co_return absl::OkStatus();
}

// The request meets the Task at every stage of its way.
TEST_F(RunOnTest, CancellationRacingWithTheEndHarmsNothing) {
  for (int i = 0; i < 500; ++i) {
    CancelScope scope;
    const auto run = [&]() -> Task<absl::Status> {
      home().PostFunction([&] { scope.Request(); });
      co_return co_await RunOn(other(), YieldTimes(i % 7)).In(&scope);
    };
    EXPECT_EQ(BlockOn(home(), run()), absl::OkStatus());
  }
}

// --- Abandonment ---------------------------------------------------------------------------------

// Tells a waiting test on which scheduler it was destroyed.
class Guard {
 public:
  explicit Guard(std::atomic<Scheduler*>& destroyed_on) : destroyed_on_(&destroyed_on) {}
  Guard(Guard&& other) noexcept : destroyed_on_(std::exchange(other.destroyed_on_, nullptr)) {}
  Guard& operator=(Guard&&) = delete;
  ~Guard() {
    if (destroyed_on_ == nullptr) return;
    destroyed_on_->store(Scheduler::Current());
    destroyed_on_->notify_all();
  }

 private:
  std::atomic<Scheduler*>* destroyed_on_;
};

Task<void> Hold(Guard guard, std::atomic<bool>& started) {
  started = true;
  started.notify_all();
  static_cast<void>(co_await SleepUntil(kNever));
}

TEST_F(RunOnTest, DestroyingTheWaitingTaskDestroysTheOtherOnItsExecutor) {
  std::atomic<Scheduler*> destroyed_on = nullptr;
  std::atomic<bool> started = false;
  Spawn(home(), RunOn(other(), Hold(Guard(destroyed_on), started)));
  started.wait(false);
  home_.reset();
  destroyed_on.wait(nullptr);
  EXPECT_EQ(destroyed_on.load(), &other());
}

TEST_F(RunOnTest, DestroyingTheOtherExecutorFirstDestroysTheTaskAndStrandsTheAwait) {
  std::atomic<Scheduler*> destroyed_on = nullptr;
  std::atomic<bool> started = false;
  Spawn(home(), RunOn(other(), Hold(Guard(destroyed_on), started)));
  started.wait(false);
  Scheduler* const there = &other();
  other_.reset();
  EXPECT_EQ(destroyed_on.load(), there);
  home_.reset();
}

// The home goes while the Task is on its way there, at work, on its way back, or back.
TEST_F(RunOnTest, AbandonmentRacingWithTheEndLeaksNothing) {
  for (int i = 0; i < 200; ++i) {
    auto home = Start();
    std::atomic<Scheduler*> destroyed_on = nullptr;
    const auto work = [](Guard guard, int yields) -> Task<void> {
      absl::Status status = co_await YieldTimes(yields);
      EXPECT_TRUE(status.ok());
    };
    Spawn(home->executor(), RunOn(other(), work(Guard(destroyed_on), i % 9)));
    if (i % 2 == 0) std::this_thread::yield();
    home.reset();
    // On either: it may have been dropped before it began.
    destroyed_on.wait(nullptr);
  }
  const auto nothing = []() -> Task<void> { co_return; };
  BlockOn(other(), nothing());
}

}  // namespace run_on_test
}  // namespace verbena
