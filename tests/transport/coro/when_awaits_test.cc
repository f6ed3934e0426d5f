// WhenAll, WhenAny and WithDeadline take the awaits that Wait(), Acquire(), Lock(), Pop(), Push(),
// Sleep() and others return. An await that loses, or that is destroyed with them, takes nothing.

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace when_awaits_test {

using absl::StatusCode;
using namespace std::chrono_literals;
using Item = std::unique_ptr<int>;

static_assert(TaskSource<Event::Awaiter> && TaskSource<Semaphore::Awaiter> &&
              TaskSource<Mutex::Awaiter> && TaskSource<Queue<Item>::Popper> &&
              TaskSource<Queue<Item>::Pusher> && TaskSource<Sleep> && TaskSource<SleepUntil> &&
              TaskSource<Yield> && TaskSource<TaskScope::Joiner>);
// Who spawns does not wait for the end, and the object of such an await must outlive it.
static_assert(BorrowingSource<Event::Awaiter> && BorrowingSource<Semaphore::Awaiter> &&
              BorrowingSource<Mutex::Awaiter> && BorrowingSource<Queue<Item>::Popper> &&
              BorrowingSource<Queue<Item>::Pusher> && BorrowingSource<TaskScope::Joiner>);
static_assert(!BorrowingSource<Sleep> && !BorrowingSource<SleepUntil> && !BorrowingSource<Yield>);

class WhenAwaitsTest : public testing::Test {
 protected:
  // Each of the objects is taken or empty, so that awaits of it wait.
  WhenAwaitsTest() : semaphore_(2) {
    EXPECT_TRUE(semaphore_.TryAcquire(2));
    lock_.emplace(*mutex_.TryLock());
  }

  void Push(int value) { EXPECT_TRUE(queue_.TryPush(std::make_unique<int>(value))); }
  // The next item; 0: there is none.
  int Popped() {
    const std::optional<Item> item = queue_.TryPop();
    return item.has_value() ? **item : 0;
  }
  void ExpectNobodyWaits() {
    EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
    EXPECT_EQ(scheduler_.timer_count(), 0u);
    lock_.reset();
    EXPECT_FALSE(mutex_.locked());
    semaphore_.Release(2);
    EXPECT_EQ(semaphore_.available(), 2u);
    EXPECT_TRUE(semaphore_.TryAcquire(2));
    Push(1);
    EXPECT_EQ(Popped(), 1);
  }

  ManualScheduler scheduler_;
  Event event_;
  Event stopped_;
  Semaphore semaphore_;
  Mutex mutex_;
  std::optional<MutexLock> lock_;
  Queue<Item> queue_{1};
};

TEST_F(WhenAwaitsTest, EachWins) {
  Started event(scheduler_, WhenAny(event_.Wait(), Sleep(1h)));
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(std::get<0>(event.result()), absl::OkStatus());

  Started permits(scheduler_, WhenAny(Sleep(1h), semaphore_.Acquire(2)));
  semaphore_.Release(2);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(std::get<1>(permits.result()), absl::OkStatus());
  EXPECT_EQ(semaphore_.available(), 0u) << "the caller has them";

  Started lock(scheduler_, WhenAny(Sleep(1h), mutex_.Lock()));
  lock_.reset();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(mutex_.locked());
  {
    const auto locked = lock.result();
    EXPECT_TRUE(std::get<1>(locked).ok());
  }
  EXPECT_FALSE(mutex_.locked());

  Started item(scheduler_, WhenAny(Sleep(1h), queue_.Pop()));
  Push(7);
  scheduler_.RunUntilIdle();
  const auto popped = item.result();
  ASSERT_TRUE(std::get<1>(popped).ok());
  EXPECT_EQ(**std::get<1>(popped), 7);

  Push(8);
  Started pushed(scheduler_, WhenAny(queue_.Push(std::make_unique<int>(9)), Sleep(1h)));
  EXPECT_EQ(Popped(), 8);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(std::get<0>(pushed.result()), absl::OkStatus());
  EXPECT_EQ(Popped(), 9);

  Started slept(scheduler_, WhenAny(stopped_.Wait(), Sleep(1ms), SleepUntil(kNever)));
  scheduler_.AdvanceBy(1ms);
  EXPECT_EQ(std::get<1>(slept.result()), absl::OkStatus());
  ExpectNobodyWaits();
}

TEST_F(WhenAwaitsTest, EachLoses) {
  Push(8);
  Queue<Item> empty(1);
  Started any(scheduler_, WhenAny(stopped_.Wait(), event_.Wait(), semaphore_.Acquire(2),
                                  mutex_.Lock(), empty.Pop(), queue_.Push(std::make_unique<int>(9)),
                                  Sleep(1h), SleepUntil(kNever)));
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(any.done());
  stopped_.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(any.done());
  EXPECT_EQ(std::get<0>(any.result()), absl::OkStatus());
  EXPECT_EQ(Popped(), 8);
  EXPECT_EQ(Popped(), 0);
  ExpectNobodyWaits();
}

TEST_F(WhenAwaitsTest, EachLosesThoughItCouldGoOnInTheSameTurn) {
  Started any(scheduler_,
              WhenAny(stopped_.Wait(), semaphore_.Acquire(2), mutex_.Lock(), queue_.Pop()));
  stopped_.Set();
  semaphore_.Release(2);
  lock_.reset();
  Push(7);
  // The others get what they wait for, and are behind the winner.
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(any.done());
  EXPECT_EQ(any.result().index(), 0u);
  EXPECT_EQ(semaphore_.available(), 2u);
  EXPECT_FALSE(mutex_.locked());
  EXPECT_EQ(Popped(), 7) << "no item is lost";
}

TEST_F(WhenAwaitsTest, WhatALoserGotGoesToTheNextBeforeTheWhenAnyIsDestroyed) {
  Started any(scheduler_, WhenAny(stopped_.Wait(), semaphore_.Acquire(2)));
  Started next(scheduler_, WithDeadline(semaphore_.Acquire(2), kNever));
  stopped_.Set();
  semaphore_.Release(2);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(any.done());
  ASSERT_TRUE(next.done());
  EXPECT_EQ(next.result(), absl::OkStatus());
}

TEST_F(WhenAwaitsTest, CancellationReachesEach) {
  CancelScope scope;
  Push(8);
  Queue<Item> empty(1);
  Started all(scheduler_,
              WhenAll(event_.Wait(), semaphore_.Acquire(), mutex_.Lock(), empty.Pop(),
                      queue_.Push(std::make_unique<int>(9)), Sleep(1h), SleepUntil(kNever)),
              &scope);
  EXPECT_FALSE(all.done());
  scope.Request(StatusCode::kDeadlineExceeded);
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(all.done());
  const auto [event, permits, lock, item, pushed, slept, until] = all.result();
  EXPECT_EQ(event.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(permits.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(lock.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(item.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pushed.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(slept.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(until.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Popped(), 8);
  ExpectNobodyWaits();
}

TEST_F(WhenAwaitsTest, DestroyedWhileTheyWaitTheyLeave) {
  CancelScope scope;
  Push(8);
  Queue<Item> empty(1);
  Started all(scheduler_,
              WhenAll(event_.Wait(), semaphore_.Acquire(), mutex_.Lock(), empty.Pop(),
                      queue_.Push(std::make_unique<int>(9)), Sleep(1h), SleepUntil(kNever)),
              &scope);
  all.Abandon();
  scope.Request();
  EXPECT_EQ(Popped(), 8);
  ExpectNobodyWaits();
}

TEST_F(WhenAwaitsTest, DestroyedWhileOthersRunTheyGiveBackWhatTheyGot) {
  // The permits and the lock are there at once, the item comes later.
  semaphore_.Release(2);
  lock_.reset();
  Started all(scheduler_,
              WhenAll(semaphore_.Acquire(2), mutex_.Lock(), queue_.Pop(), stopped_.Wait()));
  Push(7);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(semaphore_.available(), 0u);
  EXPECT_TRUE(mutex_.locked());
  EXPECT_EQ(Popped(), 0);
  all.Abandon();
  EXPECT_EQ(semaphore_.available(), 2u);
  EXPECT_FALSE(mutex_.locked());
  EXPECT_EQ(Popped(), 7);
}

TEST_F(WhenAwaitsTest, ATaskOfThemThatNeverBeginsTakesNothing) {
  semaphore_.Release(2);
  Push(7);
  {
    const auto task = WhenAll(semaphore_.Acquire(2), queue_.Pop());
  }
  {
    const auto task = WithDeadline(semaphore_.Acquire(2), 1ms);
  }
  EXPECT_EQ(semaphore_.available(), 2u);
  EXPECT_EQ(Popped(), 7);
}

TEST_F(WhenAwaitsTest, EachHasADeadline) {
  Push(8);
  Queue<Item> empty(1);
  const auto passed = [this](auto task) {
    Started limited(scheduler_, std::move(task));
    scheduler_.AdvanceBy(5ms);
    EXPECT_TRUE(limited.done());
    const auto result = limited.result();
    if constexpr (std::is_same_v<decltype(result), const absl::Status>) {
      return result.code();
    } else {
      return result.status().code();
    }
  };
  EXPECT_EQ(passed(WithDeadline(event_.Wait(), 5ms)), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(passed(WithDeadline(semaphore_.Acquire(), 5ms)), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(passed(WithDeadline(mutex_.Lock(), scheduler_.now() + 5ms)),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(passed(WithDeadline(empty.Pop(), 5ms)), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(passed(WithDeadline(queue_.Push(std::make_unique<int>(9)), 5ms)),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(passed(WithDeadline(Sleep(1h), 5ms)), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(passed(WithDeadline(Sleep(2ms), 5ms)), StatusCode::kOk);
  EXPECT_EQ(Popped(), 8);
  ExpectNobodyWaits();
}

TEST_F(WhenAwaitsTest, ATaskAndAwaitsGoTogether) {
  const auto now = []() -> Task<int> { co_return 7; };
  auto [value, yielded, slept] = scheduler_.Run(WhenAll(now(), Yield(), Sleep(1ms)));
  EXPECT_EQ(value, 7);
  EXPECT_TRUE(yielded.ok() && slept.ok());
  Task<int> task = now();
  EXPECT_EQ(scheduler_.Run(WhenAny(event_.Wait(), std::move(task))).index(), 1u);
}

TEST_F(WhenAwaitsTest, TheJoinOfAScopeIsOne) {
  TaskScope scope(scheduler_);
  const auto wait = [](Event& event) -> Task<void> { (co_await event.Wait()).IgnoreError(); };
  scope.Spawn(wait(event_));
  const auto first = scheduler_.Run(WhenAny(scope.Join(), Sleep(1ms)));
  EXPECT_EQ(first.index(), 1u);
  EXPECT_EQ(scope.size(), 0u) << "its children are asked to stop, and awaited";
}

TEST_F(WhenAwaitsTest, AnExceptionOfTheJoinComesOutIfItWins) {
  TaskScope scope(scheduler_);
  const auto fail = []() -> Task<void> {
    throw std::runtime_error("a child's");
    co_return;
  };
  scope.Spawn(fail());
  EXPECT_THROW((void)scheduler_.Run(WhenAny(scope.Join(), event_.Wait())), std::runtime_error);
}

TEST_F(WhenAwaitsTest, SteadyStateAllocatesNothing) {
  const auto loop = [](Semaphore& semaphore, Event& event, int count) -> Task<void> {
    for (int i = 0; i < count; ++i) {
      const auto first = co_await WhenAny(semaphore.Acquire(), event.Wait());
      if (first.index() == 0) semaphore.Release();
      (co_await WithDeadline(semaphore.Acquire(), kNever)).IgnoreError();
      semaphore.Release();
    }
  };
  semaphore_.Release(2);
  scheduler_.Run(loop(semaphore_, event_, 10));
  const size_t before = CountedNews();
  scheduler_.Run(loop(semaphore_, event_, 1000));
  EXPECT_EQ(CountedNews(), before);
}

}  // namespace when_awaits_test
}  // namespace verbena::internal
