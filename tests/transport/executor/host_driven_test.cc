// An executor that its host drives makes fd() readable when it has something to do, and lets the
// host arm, run and poll it in any order. Polling or destroying it inside its own loop aborts, and
// so does a second thread that drives it.

#include <poll.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/executor/test_support.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/run_on.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {
namespace host_driven_test {

using std::chrono::hours;
using std::chrono::milliseconds;

// Far above what any wait here takes.
constexpr int kPatienceMs = 20'000;

class HostDrivenTest : public testing::Test {
 protected:
  void SetUp() override { VERBENA_SKIP_WITHOUT_TESTED_WAITER(); }

  static std::unique_ptr<Executor> Create(Clock* clock = nullptr) {
    return *Executor::Create({.spin = Duration(1), .waiter = kTestedWaiter, .clock = clock});
  }
  static void RunUntilIdle(Executor& executor) {
    while (executor.Poll()) {
    }
  }
  static bool Readable(const Executor& executor, int timeout_ms) {
    pollfd descriptor = {.fd = executor.fd(), .events = POLLIN, .revents = 0};
    return poll(&descriptor, 1, timeout_ms) == 1;
  }
};

TEST_F(HostDrivenTest, ATimerThatIsDueMakesTheDescriptorReadable) {
  auto executor = Create();
  bool fired = false;
  TestTimer timer(*executor, [&] { fired = true; });
  timer.Start(milliseconds(5));
  RunUntilIdle(*executor);
  while (!fired) {
    if (executor->Arm()) {
      ASSERT_TRUE(Readable(*executor, kPatienceMs)) << "a timer is not seen in fd()";
    }
    RunUntilIdle(*executor);
  }
}

TEST_F(HostDrivenTest, ATimerThatWasStoppedLeavesTheDescriptorAlone) {
  auto executor = Create();
  bool fired = false;
  TestTimer timer(*executor, [&] { fired = true; });
  timer.Start(milliseconds(5));
  RunUntilIdle(*executor);
  (void)executor->Arm();
  // A host that wakes for something else, and long after.
  while (!fired) RunUntilIdle(*executor);
  timer.Start(hours(1));
  RunUntilIdle(*executor);
  ASSERT_TRUE(executor->Arm());
  EXPECT_FALSE(Readable(*executor, 0));
}

TEST_F(HostDrivenTest, AnExecutorWithAClockOfItsOwnTellsItsNextTimerOnly) {
  ManualClock clock;
  auto executor = Create(&clock);
  bool fired = false;
  TestTimer timer(*executor, [&] { fired = true; });
  timer.Start(milliseconds(5));
  RunUntilIdle(*executor);
  ASSERT_TRUE(executor->Arm());
  EXPECT_EQ(executor->NextTimer(), clock.Now() + milliseconds(5));
  clock.Advance(milliseconds(5));
  EXPECT_FALSE(executor->Arm()) << "the timer is due";
  RunUntilIdle(*executor);
  EXPECT_TRUE(fired);
}

Task<void> StopIt(Executor& executor) {
  executor.Stop();
  co_return;
}

TEST_F(HostDrivenTest, RunAfterArmGoesOnAsIfTheHostHadNeverSlept) {
  auto executor = Create();
  RunUntilIdle(*executor);
  ASSERT_TRUE(executor->Arm());
  Spawn(*executor, StopIt(*executor));
  executor->Run();
  RunUntilIdle(*executor);
  ASSERT_TRUE(executor->Arm());
  executor->Stop();
  executor->Run();
}

TEST_F(HostDrivenTest, AnArmedExecutorMayBeDestroyed) {
  auto executor = Create();
  RunUntilIdle(*executor);
  ASSERT_TRUE(executor->Arm());
}

Task<int> Seven() { co_return 7; }

Task<void> AskOther(Executor& other, int& result) { result = co_await RunOn(other, Seven()); }

TEST_F(HostDrivenTest, PollUntilDrivesEveryExecutorOfTheHost) {
  auto one = Create();
  auto other = Create();
  int result = 0;
  Spawn(*one, AskOther(*other, result));
  PollUntil({one.get(), other.get()}, [&] { return result == 7; });
}

TEST_F(HostDrivenTest, PollUntilSleepsWhileNothingIsDue) {
  auto one = Create();
  auto other = Create();
  bool fired = false;
  TestTimer timer(*other, [&] { fired = true; });
  timer.Start(milliseconds(50));
  PollUntil({one.get(), other.get()}, [&] { return fired; });
  // Two wake-ups do; a thread that spun for 50 ms took a hundred thousand turns.
  EXPECT_LT(one->stats().turns, 5'000u);
}

using HostDrivenDeathTest = HostDrivenTest;

TEST_F(HostDrivenDeathTest, PollingAnExecutorInsideItsOwnLoopAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto inside = [](void (*call)(Executor&)) {
    auto executor = Create();
    executor->PostFunction([&] { call(*executor); });
    RunUntilIdle(*executor);
  };
  EXPECT_DEATH(inside([](Executor& executor) { executor.Poll(); }),
               "Poll\\(\\) inside the loop of");
  EXPECT_DEATH(inside([](Executor& executor) { executor.Run(); }), "Run\\(\\) inside the loop of");
  EXPECT_DEATH(inside([](Executor& executor) { (void)executor.Arm(); }),
               "Arm\\(\\) inside the loop of");
}

TEST_F(HostDrivenDeathTest, DrivingAnExecutorThatAnotherThreadRunsAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto beside = [](void (*call)(Executor&)) {
    auto executor = Create();
    absl::Notification runs;
    executor->PostFunction([&runs] { runs.Notify(); });
    std::thread other([&executor] { executor->Run(); });
    runs.WaitForNotification();
    call(*executor);
    executor->Stop();
    other.join();
  };
  ASSERT_DEATH(beside([](Executor& executor) { executor.Poll(); }),
               "Poll\\(\\) of .*, which another thread drives");
  EXPECT_DEATH(beside([](Executor& executor) { executor.Run(); }),
               "Run\\(\\) of .*, which another thread drives");
  EXPECT_DEATH(beside([](Executor& executor) { (void)executor.Arm(); }),
               "Arm\\(\\) of .*, which another thread drives");
  // The check also aborts if the other thread has just done what this one would wait for.
  EXPECT_DEATH(beside([](Executor& executor) { PollUntil({&executor}, [] { return true; }); }),
               "Poll\\(\\) of .*, which another thread drives");
}

TEST_F(HostDrivenDeathTest, DestroyingAnExecutorInsideItsOwnLoopAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        auto executor = Create();
        executor->PostFunction([&] { executor.reset(); });
        RunUntilIdle(*executor);
      },
      "destroyed inside its own loop");
}

}  // namespace host_driven_test
}  // namespace verbena::internal
