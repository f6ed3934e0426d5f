// A TaskScope never leaves a child behind: Join() waits for all, cancellation reaches all, and the
// scope's end destroys those that are left. Spawning allocates nothing in steady state.

#include "verbena/transport/coro/scope.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

// Spawn keeps a callable, and with it what it captured, as long as its Task runs.
// NOLINTBEGIN(cppcoreguidelines-avoid-capturing-lambda-coroutines)

namespace verbena::internal {
namespace task_scope_test {

using absl::StatusCode;
using namespace std::chrono_literals;

Task<void> Count(Event& event, int& passed, int& cancelled) {
  absl::Status waited = co_await event.Wait();
  ++(waited.ok() ? passed : cancelled);
}
Task<void> Hold(Event& event, std::shared_ptr<int> held) {
  (co_await event.Wait()).IgnoreError();
  ++*held;
}
Task<void> Throw(std::string what) {
  throw std::runtime_error(what);
  co_return;
}
Task<void> JoinOnly(TaskScope& scope) { co_await scope.Join(); }

class TaskScopeTest : public testing::Test {
 protected:
  ManualScheduler scheduler_;
  Event event_;
  int passed_ = 0;
  int cancelled_ = 0;
};

TEST_F(TaskScopeTest, SpawnNeverRunsInline) {
  event_.Set();
  TaskScope scope(scheduler_);
  scope.Spawn(Count(event_, passed_, cancelled_));
  EXPECT_EQ(passed_, 0);
  EXPECT_EQ(scope.size(), 1u);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(passed_, 1);
  EXPECT_EQ(scope.size(), 0u);
}

TEST_F(TaskScopeTest, JoinWaitsForTheLastChild) {
  TaskScope scope(scheduler_);
  Event other;
  scope.Spawn(Count(event_, passed_, cancelled_));
  scope.Spawn(Count(other, passed_, cancelled_));
  Started joining(scheduler_, JoinOnly(scope));
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(joining.done());
  other.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(joining.done());
  EXPECT_EQ(passed_, 2);
}

TEST_F(TaskScopeTest, JoinOfAnEmptyScopeReturnsAtOnceAndTheScopeGoesOn) {
  TaskScope scope(scheduler_);
  EXPECT_TRUE(Started(scheduler_, JoinOnly(scope)).done());
  scope.Spawn(Count(event_, passed_, cancelled_));
  Started joining(scheduler_, JoinOnly(scope));
  EXPECT_FALSE(joining.done());
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(joining.done());
}

TEST_F(TaskScopeTest, SeveralMayJoin) {
  TaskScope scope(scheduler_);
  scope.Spawn(Count(event_, passed_, cancelled_));
  Started one(scheduler_, JoinOnly(scope));
  Started two(scheduler_, JoinOnly(scope));
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(one.done());
  EXPECT_TRUE(two.done());
}

TEST_F(TaskScopeTest, CallableKeepsItsCapturesAsLongAsTheChildRuns) {
  auto held = std::make_shared<int>(0);
  TaskScope scope(scheduler_);
  scope.Spawn([held, this]() -> Task<void> {
    absl::Status waited = co_await event_.Wait();
    *held += waited.ok() ? 1 : 100;
  });
  scheduler_.RunUntilIdle();
  EXPECT_EQ(held.use_count(), 2);
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(TaskScopeTest, RequestCancelReachesChildrenThatRunAndThoseToCome) {
  TaskScope scope(scheduler_);
  scope.Spawn(Count(event_, passed_, cancelled_));
  scheduler_.RunUntilIdle();
  scope.RequestCancel();
  scope.Spawn(Count(event_, passed_, cancelled_));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(cancelled_, 2);
  EXPECT_EQ(scope.size(), 0u);
}

TEST_F(TaskScopeTest, CancellingTheParentScopeReachesChildren) {
  CancelScope parent;
  TaskScope scope(scheduler_, &parent);
  TaskScope unrelated(scheduler_);
  scope.Spawn(Count(event_, passed_, cancelled_));
  unrelated.Spawn(Count(event_, passed_, cancelled_));
  scheduler_.RunUntilIdle();
  parent.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(cancelled_, 1);
  EXPECT_EQ(unrelated.size(), 1u);
}

// Ignores the first request, like a child with cleaning up to do.
Task<void> Stubborn(Event& event, Event& other, int& ended) {
  (co_await event.Wait()).IgnoreError();
  auto wait = [](Event& waited) -> Task<void> { (co_await waited.Wait()).IgnoreError(); };
  co_await wait(other).In(nullptr);
  ++ended;
}

TEST_F(TaskScopeTest, CancelledJoinCancelsTheChildrenAndStillWaits) {
  TaskScope scope(scheduler_);
  Event cleaned;
  int ended = 0;
  scope.Spawn(Stubborn(event_, cleaned, ended));
  CancelScope outer;
  Started joining(scheduler_, JoinOnly(scope), &outer);
  scheduler_.RunUntilIdle();
  outer.Request();
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(joining.done());
  cleaned.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(joining.done());
  EXPECT_EQ(ended, 1);
}

TEST_F(TaskScopeTest, JoinInACancelledScopeCancelsTheChildren) {
  TaskScope scope(scheduler_);
  scope.Spawn(Count(event_, passed_, cancelled_));
  CancelScope outer;
  outer.Request();
  Started joining(scheduler_, JoinOnly(scope), &outer);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(joining.done());
  EXPECT_EQ(cancelled_, 1);
}

TEST_F(TaskScopeTest, DestroyingTheScopeDestroysItsChildrenWhereverTheyAre) {
  auto held = std::make_shared<int>(0);
  Event ready;
  {
    TaskScope scope(scheduler_);
    scope.Spawn(Hold(event_, held));  // waits
    scope.Spawn(Hold(ready, held));   // woken, has not run
    scheduler_.RunUntilIdle();
    ready.Set();
    scope.Spawn(Hold(event_, held));  // has not started
    scope.Spawn([held]() -> Task<void> { co_return; });
    EXPECT_EQ(held.use_count(), 5);
  }
  EXPECT_EQ(held.use_count(), 1);
  event_.Set();
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
  EXPECT_EQ(*held, 0);
}

Task<void> OwnAScope(Event& event, std::shared_ptr<int> held) {
  TaskScope scope(co_await CurrentContext());
  scope.Spawn(Hold(event, held));
  scope.Spawn(Hold(event, held));
  co_await scope.Join();
}

TEST_F(TaskScopeTest, AbandoningTheOwnerDestroysItsScopeInJoin) {
  auto held = std::make_shared<int>(0);
  CancelScope cancel;
  Started owner(scheduler_, OwnAScope(event_, held), &cancel);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(held.use_count(), 4);
  owner.Abandon();
  EXPECT_EQ(held.use_count(), 1);
  event_.Set();
  cancel.Request();
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(TaskScopeTest, AbandonedJoinLeavesTheChildrenRunning) {
  TaskScope scope(scheduler_);
  scope.Spawn(Count(event_, passed_, cancelled_));
  CancelScope outer;
  Started joining(scheduler_, JoinOnly(scope), &outer);
  scheduler_.RunUntilIdle();
  joining.Abandon();
  outer.Request();
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(passed_, 1);
}

TEST_F(TaskScopeTest, FirstExceptionComesOutOfJoinWhenAllHaveEnded) {
  TaskScope scope(scheduler_);
  scope.Spawn(Throw("first"));
  scope.Spawn(Throw("second"));
  scope.Spawn(Count(event_, passed_, cancelled_));
  Started joining(scheduler_, JoinOnly(scope));
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(joining.done());
  event_.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(joining.done());
  try {
    joining.result();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(passed_, 1);
  scheduler_.Run(JoinOnly(scope));  // thrown once
}

TEST_F(TaskScopeTest, ChildThatSpawnsKeepsJoinWaiting) {
  TaskScope scope(scheduler_);
  scope.Spawn([&]() -> Task<void> {
    scope.Spawn(Count(event_, passed_, cancelled_));
    co_return;
  });
  Started joining(scheduler_, JoinOnly(scope));
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(joining.done());
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(joining.done());
}

struct ScopeOwner {
  explicit ScopeOwner(Scheduler& scheduler) : scope(scheduler) {}
  TaskScope scope;
};

TEST_F(TaskScopeTest, ChildMayHoldTheLastReferenceToItsScopesOwner) {
  auto service = std::make_shared<ScopeOwner>(scheduler_);
  std::weak_ptr<ScopeOwner> alive = service;
  TaskScope& scope = service->scope;
  scope.Spawn([this, self = std::move(service)]() -> Task<void> {
    (co_await event_.Wait()).IgnoreError();
  });
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(alive.expired());
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(alive.expired());
}

Task<absl::Status> Drain(TaskScope& scope) {
  co_await scope.Join();
  co_return absl::OkStatus();
}

TEST_F(TaskScopeTest, JoinUnderADeadlineDrainsThenCancels) {
  TaskScope scope(scheduler_);
  scope.Spawn(Count(event_, passed_, cancelled_));
  EXPECT_TRUE(scheduler_.Run(WithDeadline(Drain(scope), 5ms)).ok());
  EXPECT_EQ(cancelled_, 1);
}

TEST_F(TaskScopeTest, SpawningInSteadyStateAllocatesNothing) {
  TaskScope scope(scheduler_);
  const auto spawn_some = [&] {
    for (int i = 0; i < 10; ++i) scope.Spawn(Count(event_, passed_, cancelled_));
    scope.Spawn([this]() -> Task<void> { co_await Count(event_, passed_, cancelled_); });
    scheduler_.RunUntilIdle();
    event_.Set();
    scheduler_.RunUntilIdle();
    event_.Reset();
  };
  spawn_some();
  const size_t before = CountedNews();
  for (int round = 0; round < 100; ++round) spawn_some();
  EXPECT_EQ(CountedNews(), before);
  EXPECT_EQ(passed_, 101 * 11);
}

}  // namespace task_scope_test
}  // namespace verbena::internal

// NOLINTEND(cppcoreguidelines-avoid-capturing-lambda-coroutines)
