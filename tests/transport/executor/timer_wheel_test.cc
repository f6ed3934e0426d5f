// Timers fire in the order of their times and never a nanosecond early, as a sorted list would have
// them. A stopped timer never fires.

#include "verbena/transport/executor/timer_wheel.h"

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {
namespace timer_wheel_test {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

constexpr TimePoint kStart{seconds(1000)};

// Notes its name where the test can read the order.
class NotedTimer final : public Timer {
 public:
  NotedTimer(std::vector<int>& fired, int name) : fired_(fired), name_(name) {}
  void OnTimer() override {
    fired_.push_back(name_);
    if (then) then();
  }
  std::function<void()> then;

 private:
  std::vector<int>& fired_;
  const int name_;
};

class TimerWheelTest : public testing::Test {
 protected:
  std::vector<int> fired_;
  TimerWheel wheel_{kStart};
  NotedTimer first_{fired_, 1};
  NotedTimer second_{fired_, 2};
  NotedTimer third_{fired_, 3};
};

TEST_F(TimerWheelTest, FiresInTheOrderOfTimesWithinOneAdvance) {
  wheel_.Start(third_, kStart + milliseconds(30));
  wheel_.Start(first_, kStart + Duration(1));
  wheel_.Start(second_, kStart + Duration(2));
  EXPECT_EQ(wheel_.Advance(kStart + seconds(1)), 3u);
  EXPECT_THAT(fired_, ElementsAre(1, 2, 3));
}

TEST_F(TimerWheelTest, TimersOfOneTimeFireInTheOrderOfTheirStarts) {
  const TimePoint when = kStart + milliseconds(7);
  wheel_.Start(first_, when);
  wheel_.Start(second_, when);
  wheel_.Advance(when - Duration(1));
  wheel_.Start(third_, when);
  wheel_.Advance(when);
  EXPECT_THAT(fired_, ElementsAre(1, 2, 3));
}

TEST_F(TimerWheelTest, NeverFiresANanosecondEarly) {
  for (const Duration delay : {Duration(1), Duration(63), Duration(64), Duration(4096),
                               Duration(milliseconds(5)), Duration(hours(24 * 400))}) {
    TimerWheel wheel(kStart);
    fired_.clear();
    wheel.Start(first_, kStart + delay);
    wheel.Advance(kStart + delay - Duration(1));
    EXPECT_THAT(fired_, ElementsAre()) << delay.count();
    wheel.Advance(kStart + delay);
    EXPECT_THAT(fired_, ElementsAre(1)) << delay.count();
  }
}

TEST_F(TimerWheelTest, ATimeThatHasPassedFiresAtOnceAndBeforeLaterOnes) {
  wheel_.Start(second_, kStart + Duration(5));
  wheel_.Start(first_, kStart - hours(1));
  wheel_.Advance(kStart);
  EXPECT_THAT(fired_, ElementsAre(1));
}

TEST_F(TimerWheelTest, NeverIsFarAwayAndCanBeStopped) {
  wheel_.Start(first_, kNever);
  EXPECT_EQ(wheel_.NextTimer(), kNever);
  wheel_.Advance(kStart + hours(24 * 365 * 200));
  EXPECT_THAT(fired_, ElementsAre());
  wheel_.Stop(first_);
  EXPECT_FALSE(first_.linked());
}

TEST_F(TimerWheelTest, AStoppedTimerDoesNotFire) {
  wheel_.Start(first_, kStart + milliseconds(1));
  wheel_.Start(second_, kStart + milliseconds(2));
  wheel_.Stop(first_);
  EXPECT_EQ(wheel_.NextTimer(), kStart + milliseconds(2));
  wheel_.Advance(kStart + seconds(1));
  EXPECT_THAT(fired_, ElementsAre(2));
  EXPECT_EQ(wheel_.next_check(), kNever);
}

TEST_F(TimerWheelTest, ATimerStoppedByAnotherOfTheSameTurnDoesNotFire) {
  first_.then = [this] { wheel_.Stop(second_); };
  wheel_.Start(first_, kStart + Duration(10));
  wheel_.Start(second_, kStart + Duration(10));
  wheel_.Start(third_, kStart + Duration(20));
  wheel_.Advance(kStart + seconds(1));
  EXPECT_THAT(fired_, ElementsAre(1, 3));
}

TEST_F(TimerWheelTest, ARestartedTimerFiresOnceAtItsLatestTime) {
  wheel_.Start(first_, kStart + milliseconds(1));
  wheel_.Start(first_, kStart + milliseconds(9));
  wheel_.Advance(kStart + milliseconds(8));
  EXPECT_THAT(fired_, ElementsAre());
  wheel_.Advance(kStart + milliseconds(9));
  EXPECT_THAT(fired_, ElementsAre(1));
}

TEST_F(TimerWheelTest, ATimerThatRestartsItselfInThePastDoesNotHoldTheTurn) {
  first_.then = [this] { wheel_.Start(first_, kStart); };
  wheel_.Start(first_, kStart);
  EXPECT_EQ(wheel_.Advance(kStart + seconds(1)), 1u);
  EXPECT_LE(wheel_.next_check(), kStart + seconds(1));
  EXPECT_EQ(wheel_.Advance(kStart + seconds(1)), 1u);
}

TEST_F(TimerWheelTest, AClockThatGoesBackFiresNothingAndLosesNothing) {
  wheel_.Advance(kStart + seconds(10));
  wheel_.Start(first_, kStart + seconds(11));
  EXPECT_EQ(wheel_.Advance(kStart), 0u);
  wheel_.Advance(kStart + seconds(11));
  EXPECT_THAT(fired_, ElementsAre(1));
}

TEST_F(TimerWheelTest, VirtualTimeMayBeginBeforeTheEpoch) {
  TimerWheel wheel(TimePoint(-seconds(1)));
  wheel.Start(first_, TimePoint(-Duration(1)));
  wheel.Start(second_, TimePoint(Duration(1)));
  EXPECT_EQ(wheel.NextTimer(), TimePoint(-Duration(1)));
  wheel.Advance(TimePoint(Duration(0)));
  EXPECT_THAT(fired_, ElementsAre(1));
  wheel.Advance(TimePoint(Duration(1)));
  EXPECT_THAT(fired_, ElementsAre(1, 2));
}

TEST_F(TimerWheelTest, NextTimerIsExactForFewAndNotLateForMany) {
  std::vector<std::unique_ptr<NotedTimer>> timers;
  const TimePoint base = kStart + seconds(100);
  for (int i = 0; i < 200; ++i) {
    timers.push_back(std::make_unique<NotedTimer>(fired_, i));
    wheel_.Start(*timers.back(), base + microseconds(200 - i));
    const TimePoint earliest = base + microseconds(200 - i);
    if (i < 10) {
      EXPECT_EQ(wheel_.NextTimer(), earliest);
    }
    EXPECT_LE(wheel_.NextTimer(), earliest);
    EXPECT_GT(wheel_.NextTimer(), kStart);
  }
  // A loop that sleeps until NextTimer() gets there in a few steps.
  int steps = 0;
  while (fired_.empty() && steps < 20) {
    wheel_.Advance(wheel_.NextTimer());
    ++steps;
  }
  EXPECT_THAT(fired_, ElementsAre(199));
  EXPECT_LE(steps, 11);
}

// Against the obvious model: a sorted list.
TEST_F(TimerWheelTest, AgreesWithASortedListOnRandomStartsStopsAndSteps) {
  std::mt19937_64 random(7);
  constexpr int kTimers = 64;
  std::vector<std::unique_ptr<NotedTimer>> timers;
  for (int i = 0; i < kTimers; ++i) timers.push_back(std::make_unique<NotedTimer>(fired_, i));
  std::multimap<TimePoint, int> expected;  // equal keys stay in the order of starts
  TimePoint now = kStart;
  const auto random_delay = [&random] { return Duration(random() >> (random() % 40 + 24)); };
  for (int step = 0; step < 20000; ++step) {
    const int name = static_cast<int>(random() % kTimers);
    const auto is_name = [name](const auto& entry) { return entry.second == name; };
    if (random() % 4 == 0) {
      now += random_delay();
      fired_.clear();
      wheel_.Advance(now);
      std::vector<int> due;
      while (!expected.empty() && expected.begin()->first <= now) {
        due.push_back(expected.begin()->second);
        expected.erase(expected.begin());
      }
      ASSERT_EQ(fired_, due) << "step " << step;
      ASSERT_LE(wheel_.next_check(), expected.empty() ? kNever : expected.begin()->first);
    } else if (random() % 3 == 0) {
      wheel_.Stop(*timers[name]);
      std::erase_if(expected, is_name);
    } else {
      const TimePoint when = now + Duration(1) + random_delay();
      wheel_.Start(*timers[name], when);
      std::erase_if(expected, is_name);
      expected.emplace(when, name);
    }
  }
}

}  // namespace timer_wheel_test
}  // namespace verbena::internal
