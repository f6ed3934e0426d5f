// The tests' scheduler is deterministic: timers, posts and coroutines run in a fixed order, and
// time passes only when the test lets it.

#include "tests/support/manual_scheduler.h"

#include <array>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace manual_scheduler_test {

using namespace std::chrono_literals;

class Callback final : public Timer {
 public:
  explicit Callback(std::function<void()> run) : run_(std::move(run)) {}
  void OnTimer() override { run_(); }

 private:
  std::function<void()> run_;
};

class Item final : public InboxItem {
 public:
  explicit Item(std::function<void()> run) : run_(std::move(run)) {}
  void Run() override { run_(); }

 private:
  std::function<void()> run_;
};

TEST(ManualSchedulerTest, TimersFireInOrderOfTimeThenOfStarting) {
  ManualScheduler scheduler;
  std::vector<int> fired;
  std::vector<TimePoint> times;
  const auto record = [&](int id) {
    return [&, id] {
      fired.push_back(id);
      times.push_back(scheduler.Now());
    };
  };
  Callback one(record(1)), two(record(2)), three(record(3)), later(record(4));
  const TimePoint start = scheduler.now();
  scheduler.StartTimer(three, start + 2ms);
  scheduler.StartTimer(one, start + 1ms);
  scheduler.StartTimer(two, start + 1ms);
  scheduler.StartTimer(later, start + 9ms);
  EXPECT_EQ(scheduler.next_timer(), start + 1ms);
  scheduler.AdvanceBy(5ms);
  EXPECT_EQ(fired, (std::vector{1, 2, 3}));
  EXPECT_EQ(times, (std::vector{start + 1ms, start + 1ms, start + 2ms}));
  EXPECT_EQ(scheduler.now(), start + 5ms);
  scheduler.StopTimer(later);
  EXPECT_EQ(scheduler.next_timer(), kNever);
}

TEST(ManualSchedulerTest, ATimerThatIsStartedAgainFiresOnceAtItsNewTime) {
  ManualScheduler scheduler;
  std::vector<TimePoint> times;
  Callback timer([&] { times.push_back(scheduler.Now()); });
  const TimePoint start = scheduler.now();
  scheduler.StartTimer(timer, start + 1ms);
  scheduler.StartTimer(timer, start + 3ms);
  EXPECT_EQ(scheduler.timer_count(), 1u);
  scheduler.AdvanceBy(5ms);
  EXPECT_EQ(times, (std::vector{start + 3ms}));
}

TEST(ManualSchedulerTest, TimerMayStopAnotherDueAtTheSameTimeAndRestartItself) {
  ManualScheduler scheduler;
  int runs = 0;
  bool stopped_fired = false;
  Callback stopped([&] { stopped_fired = true; });
  Callback* self = nullptr;
  Callback first([&] {
    scheduler.StopTimer(stopped);
    if (++runs < 3) scheduler.StartTimer(*self, scheduler.now() + 1ms);
  });
  self = &first;
  scheduler.StartTimer(first, scheduler.now() + 1ms);
  scheduler.StartTimer(stopped, scheduler.now() + 1ms);
  scheduler.AdvanceBy(10ms);
  EXPECT_EQ(runs, 3);
  EXPECT_FALSE(stopped_fired);
  scheduler.StopTimer(stopped);  // not running: nothing happens
}

TEST(ManualSchedulerTest, CoroutinesThatATimerMakesReadyRunBeforeTheNextTimer) {
  ManualScheduler scheduler;
  std::vector<int> order;
  auto sleep = [](std::vector<int>& order, int id, Duration delay) -> Task<void> {
    (co_await Sleep(delay)).IgnoreError();
    order.push_back(id);
    (co_await Yield()).IgnoreError();
    order.push_back(id);
  };
  Started one(scheduler, sleep(order, 1, 1ms));
  Started two(scheduler, sleep(order, 2, 2ms));
  scheduler.AdvanceBy(2ms);
  EXPECT_EQ(order, (std::vector{1, 1, 2, 2}));
}

TEST(ManualSchedulerTest, TimeNeverGoesBack) {
  ManualScheduler scheduler;
  scheduler.AdvanceTo(ManualScheduler::kStart - 1s);
  EXPECT_EQ(scheduler.now(), ManualScheduler::kStart);
  EXPECT_EQ(scheduler.Now(), ManualScheduler::kStart);
}

TEST(ManualSchedulerTest, RunOneTakesOneStep) {
  ManualScheduler scheduler;
  Event event;
  auto wait = [](Event& event) -> Task<void> { (co_await event.Wait()).IgnoreError(); };
  Started one(scheduler, wait(event));
  Started two(scheduler, wait(event));
  EXPECT_FALSE(scheduler.RunOne());
  event.Set();
  EXPECT_TRUE(scheduler.RunOne());
  EXPECT_TRUE(one.done());
  EXPECT_FALSE(two.done());
}

TEST(ManualSchedulerTest, RunLetsTimePassAsNeeded) {
  ManualScheduler scheduler;
  auto sleep = []() -> Task<absl::Status> {
    absl::Status first = co_await Sleep(std::chrono::hours(24));
    co_return first.ok() ? co_await Sleep(1ms) : first;
  };
  EXPECT_TRUE(scheduler.Run(sleep()).ok());
  EXPECT_EQ(scheduler.now(), ManualScheduler::kStart + std::chrono::hours(24) + 1ms);
}

TEST(ManualSchedulerTest, RunOfATaskThatNeverEndsThrows) {
  ManualScheduler scheduler;
  Event never;
  auto wait = [](Event& event) -> Task<absl::Status> { co_return co_await event.Wait(); };
  EXPECT_THROW((void)scheduler.Run(wait(never)), std::logic_error);
}

TEST(ManualSchedulerTest, IsCurrentWhileItRuns) {
  ManualScheduler scheduler;
  Scheduler* seen = nullptr;
  Item item([&] { seen = Scheduler::Current(); });
  scheduler.Post(item);
  scheduler.RunUntilIdle();
  EXPECT_EQ(seen, &scheduler);
  EXPECT_EQ(Scheduler::Current(), nullptr);
}

TEST(ManualSchedulerTest, PostsFromOneThreadRunInOrderAlsoThoseMadeMeanwhile) {
  ManualScheduler scheduler;
  std::vector<int> ran;
  Item third([&] { ran.push_back(3); });
  Item first([&] {
    ran.push_back(1);
    scheduler.Post(third);
  });
  Item second([&] { ran.push_back(2); });
  scheduler.Post(first);
  scheduler.Post(second);
  EXPECT_TRUE(ran.empty());
  scheduler.RunUntilIdle();
  EXPECT_EQ(ran, (std::vector{1, 2, 3}));
}

TEST(ManualSchedulerTest, PostsFromManyThreadsAllRunInEachThreadsOrder) {
  ManualScheduler scheduler;
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  class Numbered final : public InboxItem {
   public:
    Numbered(std::vector<int>& ran, int number) : ran_(ran), number_(number) {}
    void Run() override {
      ran_.push_back(number_);
      delete this;
    }

   private:
    std::vector<int>& ran_;
    const int number_;
  };
  std::array<std::vector<int>, kThreads> ran;
  {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kEach; ++i) scheduler.Post(*new Numbered(ran[thread], i));
      });
    }
    for (int i = 0; i < 1000; ++i) scheduler.RunUntilIdle();  // races with the posts
    for (std::thread& thread : threads) thread.join();
  }
  scheduler.RunUntilIdle();
  for (const std::vector<int>& numbers : ran) {
    ASSERT_EQ(numbers.size(), static_cast<size_t>(kEach));
    for (int i = 0; i < kEach; ++i) EXPECT_EQ(numbers[i], i);
  }
}

TEST(ManualSchedulerTest, CoroutineWokenFromAnotherThreadThroughTheInbox) {
  ManualScheduler scheduler;
  Event event;
  auto wait = [](Event& event) -> Task<std::thread::id> {
    (co_await event.Wait()).IgnoreError();
    co_return std::this_thread::get_id();
  };
  Started waiting(scheduler, wait(event));
  Item set([&] { event.Set(); });
  std::thread([&] { scheduler.Post(set); }).join();
  scheduler.RunUntilIdle();
  ASSERT_TRUE(waiting.done());
  EXPECT_EQ(waiting.result(), std::this_thread::get_id());
}

}  // namespace manual_scheduler_test
}  // namespace verbena::internal
