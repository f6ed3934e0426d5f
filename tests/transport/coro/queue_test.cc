// A bounded queue keeps the order of its items and of its waiters. No item is lost or stolen when
// waiters are cancelled or destroyed, or the queue is closed.

#include "verbena/transport/coro/sync.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace queue_test {

using absl::StatusCode;
using Item = std::unique_ptr<int>;

Item Make(int value) { return std::make_unique<int>(value); }
Task<absl::Status> PushOne(Queue<Item>& queue, Item item) {
  co_return co_await queue.Push(std::move(item));
}
Task<absl::StatusOr<Item>> PopOne(Queue<Item>& queue) { co_return co_await queue.Pop(); }

class QueueTest : public testing::Test {
 protected:
  Started<absl::Status> Push(int value, CancelScope* scope = nullptr) {
    return Started<absl::Status>(scheduler_, PushOne(queue_, Make(value)), scope);
  }
  Started<absl::StatusOr<Item>> Pop(CancelScope* scope = nullptr) {
    return Started<absl::StatusOr<Item>>(scheduler_, PopOne(queue_), scope);
  }
  static int Value(Started<absl::StatusOr<Item>>& popped) {
    if (!popped.done()) return -1;
    absl::StatusOr<Item> item = popped.result();
    return item.ok() ? **item : -static_cast<int>(item.status().code());
  }
  // The items that TryPop finds, in order.
  std::vector<int> Drain() {
    std::vector<int> values;
    while (std::optional<Item> item = queue_.TryPop()) values.push_back(**item);
    return values;
  }

  ManualScheduler scheduler_;
  Queue<Item> queue_{2};
};

TEST(QueueDeathTest, AQueueWithoutRoomAborts) {
  EXPECT_DEATH(Queue<Item>(0), "a Queue without room would never pass an item on");
}

TEST(QueueDeathTest, DestroyingAQueueInWhichSomebodyWaitsAborts) {
  EXPECT_DEATH(
      {
        ManualScheduler scheduler;
        std::optional<Queue<Item>> queue(std::in_place, 1);
        Started popping(scheduler, PopOne(*queue));
        queue.reset();
      },
      "a Queue was destroyed while somebody waits");
}

TEST_F(QueueTest, KeepsOrderAroundTheRing) {
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(queue_.TryPush(Make(round)));
    EXPECT_TRUE(queue_.TryPush(Make(round + 100)));
    EXPECT_EQ(queue_.size(), 2u);
    EXPECT_EQ(**queue_.TryPop(), round);
    EXPECT_EQ(**queue_.TryPop(), round + 100);
    EXPECT_EQ(queue_.TryPop(), std::nullopt);
  }
}

TEST_F(QueueTest, FullQueueRefusesAndLeavesTheItemAlone) {
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  EXPECT_TRUE(queue_.TryPush(Make(2)));
  Item third = Make(3);
  EXPECT_FALSE(queue_.TryPush(std::move(third)));
  // NOLINTBEGIN(bugprone-use-after-move, clang-analyzer-cplusplus.Move): it was not moved
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(*third, 3);
  // NOLINTEND(bugprone-use-after-move, clang-analyzer-cplusplus.Move)
}

TEST_F(QueueTest, PushWaitsForRoomAndKeepsItsPlace) {
  auto first = Push(1);
  auto second = Push(2);
  auto third = Push(3);
  auto fourth = Push(4);
  EXPECT_TRUE(second.done());
  EXPECT_FALSE(third.done());
  auto popped = Pop();
  EXPECT_EQ(Value(popped), 1);
  EXPECT_FALSE(third.done());  // not inline
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(third.result().ok());
  EXPECT_FALSE(fourth.done());
  EXPECT_EQ(Drain(), (std::vector{2, 3, 4}));
}

TEST_F(QueueTest, PoppersAreServedInOrderThroughTheScheduler) {
  auto first = Pop();
  auto second = Pop();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  EXPECT_TRUE(queue_.TryPush(Make(2)));
  EXPECT_FALSE(first.done());  // not inline
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(first), 1);
  EXPECT_EQ(Value(second), 2);
}

TEST_F(QueueTest, ItemOnItsWayToAPopperIsNotStolen) {
  auto waiting = Pop();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  EXPECT_EQ(queue_.TryPop(), std::nullopt);
  auto late = Pop();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(waiting), 1);
  EXPECT_FALSE(late.done());
}

TEST_F(QueueTest, ItemOfAnAbandonedPopperGoesToTheNext) {
  auto dying = Pop();
  auto next = Pop();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  dying.Abandon();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(next), 1);
}

TEST_F(QueueTest, ItemOfAnAbandonedPopperStaysFirst) {
  auto dying = Pop();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  EXPECT_TRUE(queue_.TryPush(Make(2)));
  dying.Abandon();
  EXPECT_EQ(Drain(), (std::vector{1, 2}));
}

TEST_F(QueueTest, AbandonedWaitersAreForgotten) {
  auto popper = Pop();
  popper.Abandon();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  EXPECT_TRUE(queue_.TryPush(Make(2)));
  auto pusher = Push(3);
  pusher.Abandon();
  EXPECT_EQ(Drain(), (std::vector{1, 2}));
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(QueueTest, CancelledPusherKeepsItsItemOutAndOthersMoveUp) {
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  EXPECT_TRUE(queue_.TryPush(Make(2)));
  CancelScope scope;
  auto cancelled = Push(3, &scope);
  auto behind = Push(4);
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(cancelled.result().code(), StatusCode::kCancelled);
  EXPECT_EQ(Drain(), (std::vector{1, 2, 4}));
}

TEST_F(QueueTest, CancelledPopperLosesNoItem) {
  CancelScope scope;
  auto cancelled = Pop(&scope);
  auto behind = Pop();
  scope.Request();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(cancelled), -static_cast<int>(StatusCode::kCancelled));
  EXPECT_EQ(Value(behind), 1);
}

TEST_F(QueueTest, CancellationAfterTheItemArrivedStillDeliversIt) {
  CancelScope scope;
  auto waiting = Pop(&scope);
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(waiting), 1);
}

TEST_F(QueueTest, LoopOverAQueueThatIsNeverEmptyEndsWhenCancelled) {
  CancelScope scope;
  scope.Request();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  auto popped = Pop(&scope);
  EXPECT_EQ(Value(popped), -static_cast<int>(StatusCode::kCancelled));
  auto pushed = Push(2, &scope);
  EXPECT_EQ(pushed.result().code(), StatusCode::kCancelled);
  EXPECT_EQ(Drain(), (std::vector{1}));
}

TEST_F(QueueTest, CloseDrainsThenEnds) {
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  queue_.Close();
  queue_.Close();
  EXPECT_TRUE(queue_.closed());
  auto last = Pop();
  EXPECT_EQ(Value(last), 1);
  auto past = Pop();
  EXPECT_EQ(Value(past), -static_cast<int>(StatusCode::kOutOfRange));
  EXPECT_FALSE(queue_.TryPush(Make(2)));
  EXPECT_EQ(Push(3).result().code(), StatusCode::kFailedPrecondition);
}

TEST_F(QueueTest, CloseWakesEveryWaiter) {
  auto popper = Pop();
  queue_.Close();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(popper), -static_cast<int>(StatusCode::kOutOfRange));

  Queue<Item> full(1);
  EXPECT_TRUE(full.TryPush(Make(1)));
  Started pusher(scheduler_, PushOne(full, Make(2)));
  full.Close();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(pusher.result().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(**full.TryPop(), 1);
  EXPECT_EQ(full.TryPop(), std::nullopt);
}

TEST_F(QueueTest, ItemClaimedBeforeCloseIsStillDelivered) {
  auto waiting = Pop();
  auto unlucky = Pop();
  EXPECT_TRUE(queue_.TryPush(Make(1)));
  queue_.Close();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(waiting), 1);
  EXPECT_EQ(Value(unlucky), -static_cast<int>(StatusCode::kOutOfRange));
}

TEST_F(QueueTest, PusherAndPopperWaitingAtOnceBothGoOn) {
  Queue<Item> narrow(1);
  Started first(scheduler_, PopOne(narrow));
  Started second(scheduler_, PopOne(narrow));
  EXPECT_TRUE(narrow.TryPush(Make(1)));  // claimed by the first
  Started pusher(scheduler_, PushOne(narrow, Make(2)));
  EXPECT_FALSE(pusher.done());
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Value(first), 1);
  EXPECT_EQ(Value(second), 2);
  EXPECT_TRUE(pusher.result().ok());
}

TEST_F(QueueTest, ItemsAreDestroyedWhenPoppedAndWithTheQueue) {
  auto tracked = std::make_shared<int>(0);
  {
    Queue<std::shared_ptr<int>> queue(2);
    EXPECT_TRUE(queue.TryPush(std::shared_ptr<int>(tracked)));
    EXPECT_TRUE(queue.TryPush(std::shared_ptr<int>(tracked)));
    queue.TryPop();
    EXPECT_EQ(tracked.use_count(), 2);
  }
  EXPECT_EQ(tracked.use_count(), 1);
}

}  // namespace queue_test
}  // namespace verbena::internal
