// A mailbox between threads loses no item, even if the coroutine that awaits it is cancelled or
// destroyed.

#include "verbena/transport/coro/mailbox.h"

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace mailbox_test {

using Box = Mailbox<std::unique_ptr<int>>;
using ItemOr = absl::StatusOr<std::unique_ptr<int>>;

Task<ItemOr> Pop(std::shared_ptr<Box> box) { co_return co_await box->Pop(); }

class MailboxTest : public testing::Test {
 protected:
  void Push(int value) { EXPECT_TRUE(box_->Push(std::make_unique<int>(value))); }
  int PopValue() { return *scheduler_.Run(Pop(box_)).value(); }

  ManualScheduler scheduler_;
  std::shared_ptr<Box> box_ = std::make_shared<Box>();
};

TEST_F(MailboxTest, ItemsComeOutInOrderAndThenTheEndForEver) {
  Push(1);
  Push(2);
  box_->Finish(absl::UnavailableError("gone"));
  EXPECT_FALSE(box_->Push(std::make_unique<int>(3)));
  EXPECT_EQ(PopValue(), 1);
  EXPECT_EQ(PopValue(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(scheduler_.Run(Pop(box_)).status(), absl::UnavailableError("gone"));
  }
}

TEST_F(MailboxTest, FirstFinishCountsAndAbortOverridesIt) {
  Push(1);
  box_->Finish(absl::UnavailableError("first"));
  box_->Finish(absl::InternalError("second"));
  EXPECT_EQ(PopValue(), 1);
  EXPECT_EQ(scheduler_.Run(Pop(box_)).status(), absl::UnavailableError("first"));
  box_->Abort(absl::CancelledError("closed"));
  EXPECT_EQ(scheduler_.Run(Pop(box_)).status(), absl::CancelledError("closed"));
}

TEST_F(MailboxTest, AbortDropsWhatIsInIt) {
  Push(1);
  box_->Abort(absl::CancelledError("closed"));
  EXPECT_TRUE(box_->empty());
  EXPECT_EQ(scheduler_.Run(Pop(box_)).status(), absl::CancelledError("closed"));
}

TEST_F(MailboxTest, LimitRefusesOneMore) {
  EXPECT_TRUE(box_->Push(std::make_unique<int>(1), 2));
  EXPECT_TRUE(box_->Push(std::make_unique<int>(2), 2));
  EXPECT_FALSE(box_->Push(std::make_unique<int>(3), 2));
  EXPECT_EQ(PopValue(), 1);
  EXPECT_TRUE(box_->Push(std::make_unique<int>(4), 2));
}

TEST_F(MailboxTest, FinishWakesWhoWaits) {
  Started<ItemOr> waiting(scheduler_, Pop(box_));
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(waiting.done());
  box_->Finish(absl::UnavailableError("gone"));
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(waiting.done());
  EXPECT_EQ(waiting.result().status(), absl::UnavailableError("gone"));
}

TEST_F(MailboxTest, ItemOfAnAwaitCancelledWhileItsWakeUpIsOnTheWayStays) {
  CancelScope cancel;
  Started<ItemOr> waiting(scheduler_, Pop(box_), &cancel);
  Push(1);
  cancel.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(waiting.done());
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(PopValue(), 1);
}

TEST_F(MailboxTest, ItemOfAnAwaitDestroyedWhileItIsReadyStays) {
  auto other = std::make_shared<Box>();
  Started<ItemOr> runs_first(scheduler_, Pop(other));
  Started<ItemOr> waiting(scheduler_, Pop(box_));
  other->Push(std::make_unique<int>(0));
  Push(1);
  scheduler_.RunOne();  // both were woken, one has run
  ASSERT_TRUE(runs_first.done());
  ASSERT_FALSE(waiting.done());
  waiting.Abandon();
  EXPECT_EQ(PopValue(), 1);
}

TEST_F(MailboxTest, SecondConsumerIsRefusedAlsoWhenTheFirstIsBeingWoken) {
  Started<ItemOr> first(scheduler_, Pop(box_));
  Push(1);
  Started<ItemOr> second(scheduler_, Pop(box_));
  ASSERT_TRUE(second.done());
  EXPECT_EQ(second.result().status().code(), absl::StatusCode::kFailedPrecondition);
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(first.done());
  EXPECT_EQ(*first.result().value(), 1);
  Push(2);
  EXPECT_EQ(PopValue(), 2);
}

TEST_F(MailboxTest, AwaitKeepsTheMailboxAlive) {
  Started<ItemOr> waiting(scheduler_, Pop(box_));
  Box* raw = box_.get();
  box_ = nullptr;
  raw->Finish(absl::UnavailableError("gone"));
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(waiting.done());
}

// A producer on another thread, and a consumer that at random waits, gives up or is destroyed.
TEST(MailboxThreadsTest, NothingIsLostOrReorderedWhenAwaitsAreDestroyedAtRandom) {
  constexpr int kItems = 20000;
  auto box = std::make_shared<Box>();
  std::thread producer([box] {
    for (int i = 0; i < kItems; ++i) box->Push(std::make_unique<int>(i));
    box->Finish(absl::UnavailableError("all sent"));
  });
  WaitingScheduler scheduler;
  std::minstd_rand random(7);
  int next = 0;
  bool ended = false;
  while (!ended) {
    CancelScope cancel;
    Started<ItemOr> waiting(scheduler, Pop(box), &cancel);
    const unsigned choice = random() % 4;
    if (choice == 0) scheduler.RunPending();
    if (choice == 1) cancel.Request();
    if (choice == 2) {
      // Destroyed at the end of the scope, ready or not.
      if (waiting.done()) {
        ItemOr item = waiting.result();
        if (item.ok()) {
          ASSERT_EQ(**item, next++);
        }
      }
      continue;
    }
    scheduler.RunUntil([&] { return waiting.done(); });
    ItemOr item = waiting.result();
    if (item.ok()) {
      ASSERT_EQ(**item, next++);
    }
    ended = absl::IsUnavailable(item.status());
  }
  EXPECT_EQ(next, kItems);
  producer.join();
}

// After Disarm() the scheduler may be gone while the other thread still tries to wake.
TEST(MailboxThreadsTest, SchedulerMayEndWhileTheOtherThreadGoesOn) {
  for (int i = 0; i < 200; ++i) {
    auto box = std::make_shared<Box>();
    std::optional<WaitingScheduler> scheduler(std::in_place);
    std::optional<Started<ItemOr>> waiting(std::in_place, *scheduler, Pop(box));
    std::thread producer([box] { box->Push(std::make_unique<int>(1)); });
    waiting.reset();
    scheduler.reset();
    producer.join();
    EXPECT_FALSE(box->empty());
  }
}

TEST(MailboxDeathTest, EndingWithoutAReasonAborts) {
  const auto mailbox = std::make_shared<Mailbox<int>>();
  EXPECT_DEATH(mailbox->Finish(absl::OkStatus()), "a mailbox ends with an error");
  EXPECT_DEATH(mailbox->Abort(absl::OkStatus()), "a mailbox ends with an error");
}

}  // namespace mailbox_test
}  // namespace verbena::internal
