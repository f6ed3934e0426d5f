// An idle executor sleeps, and each completion, post, timer and stop wakes it, in every mode and in
// hosts that sleep in its stead. Built once for each Waiter. A lost wake-up hangs these tests.

#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/executor/fake_device.h"
#include "tests/transport/executor/test_support.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {
namespace sleep_test {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// Lets another thread wait for completions.
class CountedCompletions final : public CompletionListener {
 public:
  void OnCompletions(const ibv_wc*, int count) override {
    std::lock_guard lock(mutex_);
    count_ += count;
    changed_.notify_all();
  }
  void WaitFor(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class ExecutorSleepTest : public testing::Test {
 protected:
  void SetUp() override { VERBENA_SKIP_WITHOUT_TESTED_WAITER(); }

  static std::unique_ptr<Executor> Create(ExecutorMode mode) {
    return *Executor::Create({.mode = mode, .spin = Duration(1), .waiter = kTestedWaiter});
  }
  static std::unique_ptr<ExecutorThread> Start(ExecutorMode mode) {
    return *ExecutorThread::Start({.mode = mode, .spin = Duration(1), .waiter = kTestedWaiter});
  }

  // A clock that an executor moves by looking at it: time passes only for one that is awake.
  static ManualClock ClockOfItsReaders() {
    return ManualClock(ManualClock::kStart, microseconds(1));
  }
  // Runs an executor with such a clock until it has looked a hundred times.
  static void RunUntilATimer(Executor& executor) {
    TestTimer timer(executor, [&] { executor.Stop(); });
    timer.Start(microseconds(100));
    executor.Run();
  }
};

TEST_F(ExecutorSleepTest, TheForcedWaiterIsTheOneInUse) {
  EXPECT_STREQ(Create(ExecutorMode::kEvent)->waiter_name(), kTestedWaiterName);
}

TEST_F(ExecutorSleepTest, TheChoiceIsLogged) {
  CapturedLog log;
  Create(ExecutorMode::kEvent);
  EXPECT_THAT(log.Take(), Contains(HasSubstr(kTestedWaiterName)));
}

// --- Modes ---------------------------------------------------------------------------------------

TEST_F(ExecutorSleepTest, AnIdleExecutorSleepsUntilItsTimerInsteadOfTurning) {
  for (const ExecutorMode mode : {ExecutorMode::kAdaptive, ExecutorMode::kEvent}) {
    auto executor = Create(mode);
    const ExecutorStats run = SleepOnce(*executor);
    // A wake-up per level of the timer wheel at most, some for nothing, and a handful of turns with
    // each (adaptive: two rounds of 16 before the spin is over).
    EXPECT_LE(run.turns, 40u * run.sleeps + 40u);
  }
}

TEST_F(ExecutorSleepTest, ABusyExecutorNeverSleeps) {
  ManualClock clock = ClockOfItsReaders();
  auto executor =
      *Executor::Create({.mode = ExecutorMode::kBusy, .waiter = kTestedWaiter, .clock = &clock});
  RunUntilATimer(*executor);
  EXPECT_EQ(executor->stats().sleeps, 0u);
}

TEST_F(ExecutorSleepTest, AnAdaptiveExecutorSpinsBeforeItSleeps) {
  ManualClock clock = ClockOfItsReaders();
  auto executor = *Executor::Create({.spin = hours(24), .waiter = kTestedWaiter, .clock = &clock});
  RunUntilATimer(*executor);
  EXPECT_EQ(executor->stats().sleeps, 0u);
}

// --- Wake-ups ------------------------------------------------------------------------------------

TEST_F(ExecutorSleepTest, EveryCompletionWakesASleeper) {
  FakeDevice device;
  CountedCompletions listener;
  auto thread = Start(ExecutorMode::kEvent);
  ibv_cq* cq = nullptr;
  const auto add = [&]() -> Task<absl::Status> {
    cq = *thread->executor().AddCq(device, 64, listener);
    co_return absl::OkStatus();
  };
  ASSERT_TRUE(BlockOn(thread->executor(), add()).ok());
  constexpr int kRounds = 2000;
  for (int i = 1; i <= kRounds; ++i) {
    device.Push(cq, i);
    listener.WaitFor(i);
  }
  const auto remove = [&]() -> Task<absl::Status> { co_return thread->executor().RemoveCq(cq); };
  EXPECT_TRUE(BlockOn(thread->executor(), remove()).ok());
  EXPECT_LT(device.acknowledgements(), kRounds / 4) << "events are acknowledged in batches";
}

// In adaptive mode most completions come while it spins, armed from before.
TEST_F(ExecutorSleepTest, CompletionsThatComeAroundTheSpinAreNotLost) {
  FakeDevice device;
  CountedCompletions listener;
  auto executor = *Executor::Create({.spin = microseconds(20), .waiter = kTestedWaiter});
  ibv_cq* cq = *executor->AddCq(device, 64, listener);
  std::thread runner([&] { executor->Run(); });
  for (int i = 1; i <= 3000; ++i) {
    device.Push(cq, i);
    listener.WaitFor(i);
    // Lands at every phase of spinning, arming and sleeping.
    for (volatile int spin = 0; spin < (i * 37) % 4000; spin = spin + 1) {
    }
  }
  executor->Stop();
  runner.join();
  EXPECT_TRUE(executor->RemoveCq(cq).ok());
}

// The race that makes polling again after arming necessary.
TEST_F(ExecutorSleepTest, ACompletionJustBeforeArmingIsSeenThoughItRaisesNoEvent) {
  FakeDevice device;
  NotedCompletions listener;
  auto executor = Create(ExecutorMode::kEvent);
  ibv_cq* cq = *executor->AddCq(device, 16, listener);
  EXPECT_FALSE(executor->Poll());
  device.SetBeforeArming([&](ibv_cq* armed) { device.Push(armed, 11); });
  EXPECT_FALSE(executor->Arm());
  EXPECT_THAT(listener.wr_ids, ElementsAre(11));
  device.SetBeforeArming(nullptr);
  executor->Poll();
  EXPECT_TRUE(executor->Arm());
  EXPECT_EQ(device.arms(), 1) << "a queue stays armed until its event";
  executor->Poll();
  EXPECT_TRUE(executor->RemoveCq(cq).ok());
}

TEST_F(ExecutorSleepTest, AQueueThatCannotBeArmedKeepsItsExecutorAwakeAndIsLoggedOnce) {
  FakeDevice device;
  NotedCompletions listener;
  ManualClock clock = ClockOfItsReaders();
  auto executor =
      *Executor::Create({.mode = ExecutorMode::kEvent, .waiter = kTestedWaiter, .clock = &clock});
  ibv_cq* cq = *executor->AddCq(device, 16, listener);
  CapturedLog log;
  device.SetArmError(EINVAL);
  RunUntilATimer(*executor);
  EXPECT_EQ(executor->stats().sleeps, 0u);
  EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("ibv_req_notify_cq on fake0")));
  EXPECT_TRUE(executor->RemoveCq(cq).ok());
}

TEST_F(ExecutorSleepTest, PostsFromManyThreadsAllArriveAndWakeASleeper) {
  auto thread = Start(ExecutorMode::kEvent);
  constexpr int kThreads = 4;
  constexpr int kPosts = 2000;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> arrived(kThreads, 0);
  std::vector<std::thread> posters;
  for (int poster = 0; poster < kThreads; ++poster) {
    posters.emplace_back([&, poster] {
      for (int i = 0; i < kPosts; ++i) {
        thread->executor().PostFunction([&, poster, i] {
          std::lock_guard lock(mutex);
          EXPECT_EQ(arrived[poster], i) << "out of order";
          ++arrived[poster];
          changed.notify_all();
        });
        // Every other one waits, so that the executor goes to sleep again and again.
        if (i % 2 == 0) continue;
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return arrived[poster] == i + 1; });
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  EXPECT_THAT(arrived, testing::Each(kPosts));
}

// --- Stopping and starting -----------------------------------------------------------------------

TEST_F(ExecutorSleepTest, StopBeforeRunMakesItReturnAtOnceAndOnlyOnce) {
  auto executor = Create(ExecutorMode::kEvent);
  executor->Stop();
  executor->Stop();
  executor->Run();
  EXPECT_EQ(executor->stats().sleeps, 0u);
  bool ran = false;
  executor->PostFunction([&] {
    executor->PostFunction([&] {
      ran = true;
      executor->Stop();
    });
  });
  executor->Run();
  EXPECT_TRUE(ran) << "the second Run() ended by an old Stop()";
}

// A ring's requests are cancelled when their thread ends.
TEST_F(ExecutorSleepTest, ALaterRunOnAnotherThreadGoesOnWithWhatIsLeft) {
  FakeDevice device;
  CountedCompletions listener;
  auto executor = Create(ExecutorMode::kEvent);
  ibv_cq* cq = *executor->AddCq(device, 16, listener);
  for (int i = 1; i <= 5; ++i) {
    std::thread runner([&] { executor->Run(); });
    device.Push(cq, i);
    listener.WaitFor(i);
    executor->Stop();
    runner.join();
  }
  bool ran = false;
  executor->PostFunction([&] { ran = true; });
  executor->Stop();
  std::thread([&] { executor->Run(); }).join();
  EXPECT_TRUE(ran) << "what a thread posted before its Stop() still runs";
  EXPECT_TRUE(executor->RemoveCq(cq).ok());
}

TEST_F(ExecutorSleepTest, QueuesComeAndGoWhileTheirWatchesArePending) {
  auto thread = Start(ExecutorMode::kEvent);
  FakeDevice device;
  CountedCompletions listener;
  int pushed = 0;
  ibv_cq* cq = nullptr;
  const auto replace = [&]() -> Task<absl::Status> {
    if (cq != nullptr) {
      absl::Status removed = thread->executor().RemoveCq(cq);
      if (!removed.ok()) co_return removed;
    }
    cq = *thread->executor().AddCq(device, 16, listener);
    co_return absl::OkStatus();
  };
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(BlockOn(thread->executor(), replace()).ok());
    device.Push(cq, ++pushed);
    listener.WaitFor(pushed);
  }
  const auto remove = [&]() -> Task<absl::Status> { co_return thread->executor().RemoveCq(cq); };
  EXPECT_TRUE(BlockOn(thread->executor(), remove()).ok());
}

// --- A host's own loop ---------------------------------------------------------------------------

// The loop of a host: sleeps in an epoll of its own.
class HostLoop {
 public:
  explicit HostLoop(Executor& executor) : executor_(executor) {
    epoll_event event = {};
    event.events = EPOLLIN;
    EXPECT_EQ(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, executor.fd(), &event), 0);
  }
  ~HostLoop() { close(epoll_fd_); }

  // True when the executor's descriptor became readable.
  bool Wait(int timeout_ms) {
    epoll_event event;
    int count = -1;
    while ((count = epoll_wait(epoll_fd_, &event, 1, timeout_ms)) < 0 && errno == EINTR) {
    }
    return count == 1;
  }

  template <typename Done>
  void RunUntil(Done done) {
    while (!done()) {
      // Timers, too, make the descriptor readable.
      if (!executor_.Poll() && executor_.Arm()) Wait(-1);
    }
  }

 private:
  const int epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  Executor& executor_;
};

TEST_F(ExecutorSleepTest, TheDescriptorIsReadableExactlyWhileThereIsSomethingToDo) {
  FakeDevice device;
  NotedCompletions listener;
  auto executor = Create(ExecutorMode::kAdaptive);
  ibv_cq* cq = *executor->AddCq(device, 16, listener);
  HostLoop host(*executor);
  while (executor->Poll()) {
  }
  ASSERT_TRUE(executor->Arm());
  EXPECT_FALSE(host.Wait(0));

  bool ran = false;
  std::thread([&] { executor->PostFunction([&] { ran = true; }); }).join();
  EXPECT_TRUE(host.Wait(-1));
  EXPECT_TRUE(executor->Poll());
  EXPECT_TRUE(ran);
  ASSERT_TRUE(executor->Arm());
  EXPECT_FALSE(host.Wait(0)) << "it stays readable with nothing to do";

  std::thread([&] { device.Push(cq, 3); }).join();
  EXPECT_TRUE(host.Wait(-1));
  EXPECT_TRUE(executor->Poll());
  EXPECT_THAT(listener.wr_ids, ElementsAre(3));
  ASSERT_TRUE(executor->Arm());
  ASSERT_TRUE(executor->Arm()) << "arming twice is harmless";
  EXPECT_FALSE(host.Wait(0));
  executor->Poll();
  EXPECT_TRUE(executor->RemoveCq(cq).ok());
}

TEST_F(ExecutorSleepTest, ArmRefusesWhileATimerIsDue) {
  ManualClock clock;
  auto executor = *Executor::Create({.waiter = kTestedWaiter, .clock = &clock});
  bool fired = false;
  TestTimer timer(*executor, [&] { fired = true; });
  timer.Start(milliseconds(1));
  while (executor->Poll()) {
  }
  ASSERT_TRUE(executor->Arm());
  clock.Advance(milliseconds(1));
  // Polled for another reason a moment before.
  EXPECT_FALSE(executor->Arm());
  EXPECT_TRUE(executor->Poll());
  EXPECT_TRUE(fired);
}

TEST_F(ExecutorSleepTest, AHostLoopGetsCompletionsPostsAndTimers) {
  FakeDevice device;
  NotedCompletions listener;
  auto executor = Create(ExecutorMode::kAdaptive);
  ibv_cq* cq = *executor->AddCq(device, 1024, listener);
  HostLoop host(*executor);
  constexpr int kEach = 500;
  int posted = 0;
  std::thread other([&] {
    for (int i = 0; i < kEach; ++i) {
      device.Push(cq, i);
      executor->PostFunction([&posted] { ++posted; });
    }
  });
  int fired = 0;
  TestTimer timer(*executor, [&] {
    if (++fired < 20) timer.Start(microseconds(100));
  });
  timer.Start(microseconds(100));
  host.RunUntil([&] { return posted == kEach && listener.wr_ids.size() == kEach && fired == 20; });
  other.join();
  EXPECT_TRUE(executor->RemoveCq(cq).ok());
}

// --- Pinning -------------------------------------------------------------------------------------

TEST_F(ExecutorSleepTest, RunPinsItsThreadAndGivesItsCoresBack) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  auto executor = *Executor::Create({.waiter = kTestedWaiter, .cpu = cpu});
  cpu_set_t inside;
  executor->PostFunction([&] {
    ASSERT_EQ(sched_getaffinity(0, sizeof(inside), &inside), 0);
    executor->Stop();
  });
  executor->Run();
  EXPECT_EQ(CPU_COUNT(&inside), 1);
  EXPECT_TRUE(CPU_ISSET(cpu, &inside));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST_F(ExecutorSleepTest, ACoreThatDoesNotExistIsLoggedAndTheExecutorRuns) {
  CapturedLog log;
  auto executor = *Executor::Create({.waiter = kTestedWaiter, .cpu = 100000});
  executor->Stop();
  executor->Run();
  EXPECT_THAT(log.Take(), Contains(HasSubstr("cannot be pinned to core 100000")));
}

}  // namespace sleep_test
}  // namespace verbena::internal
