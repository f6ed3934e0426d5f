// WhenAll gives every result in order, and WhenAny the first, once all its other Tasks have ended.
// Cancellation and destruction reach each Task, and steady state allocates nothing.

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace when_test {

using absl::StatusCode;
using namespace std::chrono_literals;

Task<int> Now(int value) { co_return value; }
Task<int> After(Event& event, int value) {
  absl::Status waited = co_await event.Wait();
  co_return waited.ok() ? value : -static_cast<int>(waited.code());
}
Task<void> Append(Event& event, std::vector<int>& order, int value) {
  order.push_back(value);
  (co_await event.Wait()).IgnoreError();
  order.push_back(-value);
}
Task<std::string> Slow(Duration delay, std::string value) {
  absl::Status slept = co_await Sleep(delay);
  co_return slept.ok() ? value : "stopped";
}
Task<int> Throw(std::string what) {
  throw std::runtime_error(what);
  co_return 0;
}
Task<void> HoldOn(Event& event, std::shared_ptr<int> held) {
  (co_await event.Wait()).IgnoreError();
  ++*held;
}

class WhenTest : public testing::Test {
 protected:
  ManualScheduler scheduler_;
  Event event_;
  Event other_;
};

using WhenAllTest = WhenTest;
using WhenAnyTest = WhenTest;

TEST_F(WhenAllTest, GivesResultsOfSeveralTypesInOrder) {
  std::vector<int> order;
  Started all(scheduler_, WhenAll(After(event_, 1), Slow(5ms, "slow"), Append(event_, order, 3)));
  EXPECT_EQ(order, (std::vector{3}));  // all have started
  event_.Set();
  scheduler_.AdvanceBy(4ms);
  EXPECT_FALSE(all.done());
  scheduler_.AdvanceBy(1ms);
  ASSERT_TRUE(all.done());
  EXPECT_EQ(all.result(), (std::tuple<int, std::string, std::monostate>{1, "slow", {}}));
}

TEST_F(WhenAllTest, TasksThatEndAtOnceDoNotSuspend) {
  Started all(scheduler_, WhenAll(Now(1), Now(2)));
  ASSERT_TRUE(all.done());
  EXPECT_EQ(all.result(), (std::tuple{1, 2}));
}

TEST_F(WhenAllTest, ParentGoesOnThroughTheSchedulerOnce) {
  Started all(scheduler_, WhenAll(After(event_, 1), After(event_, 2)));
  event_.Set();
  EXPECT_EQ(scheduler_.RunUntilIdle(), 3u);
  EXPECT_TRUE(all.done());
}

TEST_F(WhenAllTest, VectorsOfValuesOfVoidsAndOfNothing) {
  std::vector<Task<int>> values;
  values.reserve(5);
  for (int i = 0; i < 5; ++i) values.push_back(After(i % 2 == 0 ? event_ : other_, i));
  std::vector<int> order;
  std::vector<Task<void>> voids;
  for (int i = 1; i < 4; ++i) voids.push_back(Append(event_, order, i));
  Started all_values(scheduler_, WhenAll(std::move(values)));
  Started all_voids(scheduler_, WhenAll(std::move(voids)));
  other_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(all_values.done());
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(all_values.result(), (std::vector{0, 1, 2, 3, 4}));
  EXPECT_EQ(order, (std::vector{1, 2, 3, -1, -2, -3}));
  EXPECT_TRUE(all_voids.done());
  EXPECT_TRUE(scheduler_.Run(WhenAll(std::vector<Task<int>>())).empty());
  scheduler_.Run(WhenAll(std::vector<Task<void>>()));
}

TEST_F(WhenAllTest, CancellationReachesEveryTaskAndAllAreAwaited) {
  CancelScope scope;
  Started all(scheduler_, WhenAll(After(event_, 1), After(event_, 2), Now(3)), &scope);
  scope.Request();
  scheduler_.RunUntilIdle();
  const int cancelled = -static_cast<int>(StatusCode::kCancelled);
  EXPECT_EQ(all.result(), (std::tuple{cancelled, cancelled, 3}));
}

TEST_F(WhenAllTest, FirstExceptionInOrderComesOutAfterAllHaveEnded) {
  Started all(scheduler_, WhenAll(After(event_, 1), Throw("early"), Throw("late")));
  EXPECT_FALSE(all.done());
  event_.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(all.done());
  try {
    all.result();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "early");
  }
}

TEST_F(WhenAllTest, AbandoningDestroysEveryTask) {
  auto held = std::make_shared<int>(0);
  CancelScope scope;
  Started all(scheduler_, WhenAll(HoldOn(event_, held), HoldOn(other_, held), Now(1)), &scope);
  event_.Set();  // one is ready, one waits, one has ended
  all.Abandon();
  EXPECT_EQ(held.use_count(), 1);
  other_.Set();
  scope.Request();
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(WhenAllTest, AbandonedWhenReadyNeverRuns) {
  auto held = std::make_shared<int>(0);
  Started all(scheduler_, WhenAll(HoldOn(event_, held), Now(1)));
  event_.Set();
  ASSERT_TRUE(scheduler_.RunOne());  // the child ends; the parent is ready
  EXPECT_EQ(*held, 1);
  all.Abandon();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(WhenAllTest, SteadyStateAllocatesNothing) {
  auto loop = [](Event& event, int count) -> Task<int> {
    int sum = 0;
    for (int i = 0; i < count; ++i) {
      auto [a, b] = co_await WhenAll(Now(1), After(event, 2));
      std::variant<int, int> first = co_await WhenAny(After(event, 3), Now(4));
      sum += a + b + std::get<0>(first);
    }
    co_return sum;
  };
  event_.Set();
  EXPECT_EQ(scheduler_.Run(loop(event_, 10)), 60);
  const size_t before = CountedNews();
  EXPECT_EQ(scheduler_.Run(loop(event_, 1000)), 6000);
  EXPECT_EQ(CountedNews(), before);
}

TEST_F(WhenAnyTest, FirstToEndWinsAndTheOthersAreStoppedAndJoined) {
  Started any(scheduler_, WhenAny(Slow(9ms, "nine"), After(event_, 2), Slow(3ms, "three")));
  scheduler_.AdvanceBy(3ms);
  ASSERT_TRUE(any.done());
  auto result = any.result();
  EXPECT_EQ(result.index(), 2u);
  EXPECT_EQ(std::get<2>(result), "three");
  EXPECT_EQ(scheduler_.timer_count(), 0u);
}

TEST_F(WhenAnyTest, EndingTogetherTheFirstInTurnWins) {
  Started any(scheduler_, WhenAny(After(event_, 1), After(event_, 2)));
  event_.Set();
  scheduler_.RunUntilIdle();
  auto result = any.result();
  EXPECT_EQ(result.index(), 0u);
  EXPECT_EQ(std::get<0>(result), 1);
}

TEST_F(WhenAnyTest, WinnerAtTheStartKeepsTheRestFromStarting) {
  std::vector<int> order;
  Started any(scheduler_, WhenAny(After(event_, 1), Now(2), Append(event_, order, 3)));
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(any.done());
  auto result = any.result();
  EXPECT_EQ(result.index(), 1u);
  EXPECT_EQ(std::get<1>(result), 2);
  EXPECT_TRUE(order.empty());
}

TEST_F(WhenAnyTest, LoserThatIgnoresCancellationIsJoined) {
  bool ended = false;
  auto stubborn = [](Event& event, bool& ended) -> Task<int> {
    const int value = co_await After(event, 1).In(nullptr);
    ended = true;
    co_return value;
  };
  Started any(scheduler_, WhenAny(stubborn(other_, ended), After(event_, 2)));
  event_.Set();
  scheduler_.AdvanceBy(1s);
  EXPECT_FALSE(any.done());
  other_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(ended);
  ASSERT_TRUE(any.done());
  EXPECT_EQ(any.result().index(), 1u);
}

TEST_F(WhenAnyTest, VectorTellsTheIndexAndTheResult) {
  std::vector<Task<std::string>> tasks;
  tasks.reserve(5);
  for (int i = 0; i < 5; ++i) tasks.push_back(Slow(i == 3 ? 1ms : 5ms, std::to_string(i)));
  auto [index, result] = scheduler_.Run(WhenAny(std::move(tasks)));
  EXPECT_EQ(index, 3u);
  EXPECT_EQ(result, "3");
}

TEST_F(WhenAnyTest, TakesAVectorOfTasksWithoutResults) {
  auto held = std::make_shared<int>(0);
  std::vector<Task<void>> tasks;
  tasks.push_back(HoldOn(event_, held));
  tasks.push_back(HoldOn(other_, held));
  other_.Set();
  EXPECT_EQ(scheduler_.Run(WhenAny(std::move(tasks))).index, 1u);
  EXPECT_EQ(*held, 2);
}

TEST_F(WhenAnyTest, WinnersExceptionComesOutAndLosersIsDropped) {
  EXPECT_THROW((void)scheduler_.Run(WhenAny(After(event_, 1), Throw("winner"))),
               std::runtime_error);
  auto throw_if_stopped = [](Event& event) -> Task<int> {
    if (co_await After(event, 1) < 0) throw std::runtime_error("loser");
    co_return 1;
  };
  EXPECT_EQ(scheduler_.Run(WhenAny(throw_if_stopped(event_), Now(2))).index(), 1u);
}

TEST_F(WhenAnyTest, CancellationFromOutsideReachesEveryTask) {
  CancelScope scope;
  Started any(scheduler_, WhenAny(After(event_, 1), After(other_, 2)), &scope);
  scope.Request(StatusCode::kDeadlineExceeded);
  scheduler_.RunUntilIdle();
  auto result = any.result();
  EXPECT_EQ(result.index(), 0u);
  EXPECT_EQ(std::get<0>(result), -static_cast<int>(StatusCode::kDeadlineExceeded));
}

TEST_F(WhenAnyTest, OfNoTasksAborts) {
  EXPECT_DEATH((void)scheduler_.Run(WhenAny(std::vector<Task<int>>())), "WhenAny of no Tasks");
}

TEST_F(WhenAnyTest, AbandoningDestroysEveryTask) {
  auto held = std::make_shared<int>(0);
  CancelScope scope;
  Started any(scheduler_, WhenAny(HoldOn(event_, held), HoldOn(other_, held)), &scope);
  any.Abandon();
  EXPECT_EQ(held.use_count(), 1);
  event_.Set();
  scope.Request();
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(WhenAnyTest, AbandonedWhileALoserIsStoppingDestroysIt) {
  auto held = std::make_shared<int>(0);
  Started any(scheduler_, WhenAny(HoldOn(event_, held), HoldOn(other_, held)));
  event_.Set();
  ASSERT_TRUE(scheduler_.RunOne());  // the winner ends; the loser is ready with its cancellation
  EXPECT_FALSE(any.done());
  any.Abandon();
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

}  // namespace when_test
}  // namespace verbena::internal
