// A spawned task is joined by a thread or by a coroutine of any executor, which then has its result
// or exception. Whichever of task, handle and joiner ends first, nothing is lost or left behind,
// and nobody waits for ever. joined_executor_test.cc has the executors that end.

#include "verbena/transport/executor/spawn.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/executor/slow_to_die.h"
#include "tests/transport/executor/two_executors.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

// Spawn keeps a callable, and with it what it captured, as long as its Task runs.
// NOLINTBEGIN(cppcoreguidelines-avoid-capturing-lambda-coroutines)

namespace verbena::internal {
namespace join_handle_test {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace std::chrono_literals;

using JoinHandleTest = TwoExecutors;

Task<int> Seven() { co_return 7; }
Task<absl::Status> SleepForEver() { co_return co_await SleepUntil(kNever); }
Task<absl::Status> SleepAndTell(std::latch& started) {
  started.count_down();
  co_return co_await SleepUntil(kNever);
}
template <typename T>
Task<T> Await(JoinHandle<T> handle) {
  co_return co_await std::move(handle);
}
Task<void> Throw() {
  throw std::runtime_error("thrown there");
  co_return;
}

// Posted to an executor: looks whether a result still lives then.
class LookAtResult final : public InboxItem {
 public:
  void Run() override { gone = result.expired(); }

  std::weak_ptr<int> result;
  bool gone = false;
};

// --- Results -------------------------------------------------------------------------------------

TEST_F(JoinHandleTest, AThreadJoinsAndTheHandleIsEmptyThen) {
  JoinHandle<int> handle = Spawn(other(), Seven());
  EXPECT_TRUE(static_cast<bool>(handle));
  EXPECT_EQ(handle.Join(), 7);
  EXPECT_FALSE(static_cast<bool>(handle));
}

TEST_F(JoinHandleTest, ACoroutineJoinsATaskOfAnotherExecutor) {
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(BlockOn(home(), Await(Spawn(other(), Seven()))), 7);
  }
}

TEST_F(JoinHandleTest, ADeadlineOfTheJoinerStopsTheTask) {
  const auto join = [](JoinHandle<absl::Status> handle) -> Task<absl::Status> {
    co_return co_await WithDeadline(std::move(handle), TimePoint());  // long past
  };
  EXPECT_EQ(BlockOn(home(), join(Spawn(other(), SleepForEver()))).code(),
            StatusCode::kDeadlineExceeded);
}

TEST_F(JoinHandleTest, ATaskWhoseJoinLosesIsStoppedAndAwaited) {
  const auto join = [](JoinHandle<absl::Status> handle) -> Task<size_t> {
    co_return (co_await WhenAny(std::move(handle), Yield())).index();
  };
  EXPECT_EQ(BlockOn(home(), join(Spawn(other(), SleepForEver()))), 1u);
}

Task<bool> JoinHere(Executor& here) {
  static const auto where = []() -> Task<Scheduler*> { co_return Scheduler::Current(); };
  Scheduler* const there = co_await Spawn(here, where());
  co_return there == &here&& Scheduler::Current() == &here;
}

TEST_F(JoinHandleTest, ACoroutineJoinsATaskOfItsOwnExecutor) {
  EXPECT_TRUE(BlockOn(home(), JoinHere(home())));
}

Task<bool> ResumesAtHome(Executor& home, JoinHandle<int> handle) {
  (void)co_await std::move(handle);
  co_return Scheduler::Current() == &home;
}

TEST_F(JoinHandleTest, TheJoinerResumesOnItsOwnExecutor) {
  EXPECT_TRUE(BlockOn(home(), ResumesAtHome(home(), Spawn(other(), Seven()))));
}

// The request to cancel, which comes behind the look, holds the state.
TEST_F(JoinHandleTest, TheResultOfADroppedHandleIsDestroyedWhenItsTaskEnds) {
  JoinHandle<std::shared_ptr<int>> handle;
  LookAtResult look;
  const auto drop_and_end = [&]() -> Task<std::shared_ptr<int>> {
    auto result = std::make_shared<int>(7);
    look.result = result;
    home().Post(look);
    handle.RequestCancel();
    handle = {};
    co_return result;
  };
  const auto begin = [&]() -> Task<void> {
    handle = Spawn(home(), drop_and_end);
    co_return;
  };
  BlockOn(home(), begin());
  PassThrough(home());
  PassThrough(home());
  EXPECT_TRUE(look.gone);
}

TEST_F(JoinHandleTest, ATaskThatEndedLongAgoIsJoinedAtOnce) {
  JoinHandle<int> by_thread = Spawn(other(), Seven());
  JoinHandle<int> by_coroutine = Spawn(other(), Seven());
  PassThrough(other());
  EXPECT_TRUE(by_thread.done());
  EXPECT_EQ(by_thread.Join(), 7);
  EXPECT_EQ(BlockOn(home(), Await(std::move(by_coroutine))), 7);
}

TEST_F(JoinHandleTest, ResultsMayBeMoveOnlyOrVoid) {
  const auto make = []() -> Task<std::unique_ptr<int>> { co_return std::make_unique<int>(8); };
  EXPECT_EQ(*Spawn(other(), make()).Join(), 8);
  std::atomic<bool> ran = false;
  Spawn(other(), [&]() -> Task<void> {
    ran = true;
    co_return;
  }).Join();
  EXPECT_TRUE(ran);
}

TEST_F(JoinHandleTest, ACallableLivesAsLongAsItsTaskAndDiesOnTheExecutor) {
  auto held = std::make_shared<std::string>("captured");
  std::weak_ptr<std::string> alive = held;
  JoinHandle<size_t> handle = Spawn(other(), [held = std::move(held)]() -> Task<size_t> {
    for (int i = 0; i < 10; ++i) (co_await Yield()).IgnoreError();
    co_return held->size();
  });
  EXPECT_EQ(handle.Join(), 8u);
  EXPECT_TRUE(alive.expired());
}

TEST_F(JoinHandleTest, TheTasksFrameIsGoneBeforeTheThreadThatJoinsWakes) {
  std::atomic<bool> dead = false;
  EXPECT_EQ(Spawn(other(), Keep(SlowToDie(dead))).Join(), 7);
  EXPECT_TRUE(dead);
}

Task<bool> IsDeadAfterJoin(JoinHandle<int> handle, std::atomic<bool>& dead) {
  (void)co_await std::move(handle);
  co_return dead.load();
}

TEST_F(JoinHandleTest, TheTasksFrameIsGoneBeforeTheJoinerResumes) {
  std::atomic<bool> dead = false;
  JoinHandle<int> handle = Spawn(other(), Keep(SlowToDie(dead)));
  EXPECT_TRUE(BlockOn(home(), IsDeadAfterJoin(std::move(handle), dead)));
}

// --- Exceptions ----------------------------------------------------------------------------------

TEST_F(JoinHandleTest, AnExceptionComesOutOfTheJoinAndIsNotLogged) {
  CapturedLog log;
  EXPECT_THROW(Spawn(other(), Throw()).Join(), std::runtime_error);
  EXPECT_THROW(BlockOn(home(), Await(Spawn(other(), Throw()))), std::runtime_error);
  EXPECT_THAT(log.Take(), IsEmpty());
}

TEST_F(JoinHandleTest, AnExceptionThatNobodyTakesIsLoggedWhenTheHandleIsDropped) {
  CapturedLog log;
  JoinHandle<> handle = Spawn(other(), Throw());
  PassThrough(other());
  EXPECT_THAT(log.Take(), IsEmpty());
  handle = JoinHandle<>();
  EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("given to Spawn threw: thrown there")));
}

TEST_F(JoinHandleTest, AnExceptionOfADetachedTaskIsLoggedWhenItIsThrown) {
  CapturedLog log;
  std::latch begin(1);
  Spawn(other(), [&]() -> Task<void> {
    begin.wait();
    throw std::runtime_error("nobody waits");
    co_return;
  });
  begin.count_down();
  PassThrough(other());
  EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("nobody waits")));
}

// --- Cancellation --------------------------------------------------------------------------------

TEST_F(JoinHandleTest, ARequestReachesTheTaskWhichThenEnds) {
  std::latch started(1);
  JoinHandle<absl::Status> handle = Spawn(other(), SleepAndTell(started));
  started.wait();
  EXPECT_FALSE(handle.done());
  handle.RequestCancel(StatusCode::kDeadlineExceeded);
  handle.RequestCancel();  // too late to count
  EXPECT_EQ(handle.Join().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(JoinHandleTest, ARequestBeforeTheTaskBeginsCounts) {
  auto executor = *Executor::Create({.waiter = WaiterKind::kEpoll});
  JoinHandle<absl::Status> handle = Spawn(*executor, SleepForEver());
  handle.RequestCancel();
  while (executor->Poll()) {
  }
  ASSERT_TRUE(handle.done());
  EXPECT_EQ(handle.Join().code(), StatusCode::kCancelled);
}

TEST_F(JoinHandleTest, ARequestAfterTheEndDoesNothing) {
  JoinHandle<int> handle = Spawn(other(), Seven());
  PassThrough(other());
  other_.reset();
  handle.RequestCancel();
  EXPECT_EQ(handle.Join(), 7);
}

Task<absl::Status> AwaitIn(CancelScope& scope, JoinHandle<absl::Status> handle) {
  co_return co_await Await(std::move(handle)).In(&scope);
}

TEST_F(JoinHandleTest, CancellingTheJoinerCancelsTheTaskAndGivesItsResult) {
  CancelScope scope;
  std::latch started(1);
  JoinHandle<absl::Status> handle = Spawn(other(), SleepAndTell(started));
  std::thread canceller([&] {
    started.wait();
    home().PostFunction([&] { scope.Request(StatusCode::kDeadlineExceeded); });
  });
  EXPECT_EQ(BlockOn(home(), AwaitIn(scope, std::move(handle))).code(),
            StatusCode::kDeadlineExceeded);
  canceller.join();
}

TEST_F(JoinHandleTest, AJoinerThatIsCancelledAlreadyCancelsTheTask) {
  CancelScope scope;
  scope.Request();
  EXPECT_EQ(BlockOn(home(), AwaitIn(scope, Spawn(other(), SleepForEver()))).code(),
            StatusCode::kCancelled);
}

TEST_F(JoinHandleTest, ADeadlineOfTheJoinerBoundsTheTask) {
  JoinHandle<absl::Status> handle = Spawn(other(), SleepForEver());
  EXPECT_EQ(BlockOn(home(), WithDeadline(Await(std::move(handle)), 1ms)).code(),
            StatusCode::kDeadlineExceeded);
}

Task<absl::Status> YieldTimes(int times) {
  for (int i = 0; i < times; ++i) (co_await Yield()).IgnoreError();
  co_return absl::OkStatus();
}

// The request meets the task at every stage of its way.
TEST_F(JoinHandleTest, CancellationRacingWithTheEndHarmsNothing) {
  for (int i = 0; i < 500; ++i) {
    CancelScope scope;
    const auto run = [&]() -> Task<absl::Status> {
      home().PostFunction([&] { scope.Request(); });
      co_return co_await AwaitIn(scope, Spawn(other(), YieldTimes(i % 7)));
    };
    EXPECT_EQ(BlockOn(home(), run()), absl::OkStatus());
    // The request may come after the end, and uses the scope until it returns.
    PassThrough(home());
  }
}

// --- Dropping and abandoning ---------------------------------------------------------------------

TEST_F(JoinHandleTest, DroppingTheHandleLetsTheTaskGoOn) {
  std::latch go_on(1);
  std::latch ended(1);
  Spawn(other(), [&]() -> Task<void> {
    go_on.wait();
    absl::Status yielded = co_await Yield();
    EXPECT_TRUE(yielded.ok()) << yielded;
    ended.count_down();
  });
  go_on.count_down();
  ended.wait();
  PassThrough(other());
}

// A joiner on an executor that the test drives, so that it is known to wait.
class AbandonedJoinerTest : public JoinHandleTest {
 protected:
  void PollAll() {
    while (driven_->Poll()) {
    }
  }
  std::unique_ptr<Executor> driven_ = *Executor::Create({.waiter = WaiterKind::kEpoll});
};

TEST_F(AbandonedJoinerTest, TheTaskGoesOnWhenTheCoroutineThatWaitsIsDestroyed) {
  std::latch started(1);
  std::latch go_on(1);
  std::atomic<bool> cancelled = true;
  JoinHandle<> handle = Spawn(other(), [&]() -> Task<void> {
    started.count_down();
    go_on.wait();
    cancelled = !(co_await Yield()).ok();
  });
  started.wait();
  Spawn(*driven_, Await(std::move(handle)));
  PollAll();
  driven_.reset();  // destroys the joiner
  go_on.count_down();
  PassThrough(other());
  EXPECT_FALSE(cancelled);
}

TEST_F(AbandonedJoinerTest, AResultOnItsWayToADestroyedJoinerIsDropped) {
  auto result = std::make_shared<int>(0);
  std::weak_ptr<int> alive = result;
  std::latch go_on(1);
  JoinHandle<std::shared_ptr<int>> handle =
      Spawn(other(), [&, result = std::move(result)]() -> Task<std::shared_ptr<int>> {
        go_on.wait();
        co_return result;
      });
  Spawn(*driven_, Await(std::move(handle)));
  PollAll();
  go_on.count_down();
  PassThrough(other());  // the message is in the inbox now
  driven_.reset();
  EXPECT_TRUE(alive.expired());
}

TEST_F(AbandonedJoinerTest, AnExceptionOnItsWayToADestroyedJoinerIsLogged) {
  CapturedLog log;
  std::latch go_on(1);
  JoinHandle<> handle = Spawn(other(), [&]() -> Task<void> {
    go_on.wait();
    throw std::runtime_error("too late");
    co_return;
  });
  Spawn(*driven_, Await(std::move(handle)));
  PollAll();
  go_on.count_down();
  PassThrough(other());
  driven_.reset();
  EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("too late")));
}

// The joiner goes while the task is on its way there, at work, on its way back, or back.
TEST_F(JoinHandleTest, AbandonmentRacingWithTheEndLeaksNothing) {
  for (int i = 0; i < 200; ++i) {
    auto home = Start();
    auto held = std::make_shared<int>(0);
    JoinHandle<absl::Status> handle =
        Spawn(other(), [held, i]() -> Task<absl::Status> { co_return co_await YieldTimes(i % 9); });
    Spawn(home->executor(), Await(std::move(handle)));
    if (i % 2 == 0) std::this_thread::yield();
    home.reset();
    for (int turn = 0; turn < 12; ++turn) PassThrough(other());
    EXPECT_EQ(held.use_count(), 1);
  }
}

// --- Misuse --------------------------------------------------------------------------------------

class JoinHandleDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(JoinHandleDeathTest, JoiningInsideALoopAborts) {
  EXPECT_DEATH(
      {
        auto thread = *ExecutorThread::Start();
        const auto join = [&]() -> Task<int> {
          co_return Spawn(thread->executor(), Seven()).Join();
        };
        (void)BlockOn(thread->executor(), join());
      },
      "JoinHandle::Join was called on an executor's thread");
}

TEST_F(JoinHandleDeathTest, UsingAnEmptyHandleAborts) {
  JoinHandle<int> empty;
  EXPECT_DEATH((void)empty.Join(), "empty, moved from or joined");
  EXPECT_DEATH((void)empty.done(), "empty, moved from or joined");
  EXPECT_DEATH(empty.RequestCancel(), "empty, moved from or joined");
}

TEST_F(JoinHandleDeathTest, SpawningAnEmptyTaskAborts) {
  auto executor = *Executor::Create({.waiter = WaiterKind::kEpoll});
  EXPECT_DEATH(Spawn(*executor, Task<int>()), "a Task was spawned that is empty");
}

}  // namespace join_handle_test
}  // namespace verbena::internal

// NOLINTEND(cppcoreguidelines-avoid-capturing-lambda-coroutines)
