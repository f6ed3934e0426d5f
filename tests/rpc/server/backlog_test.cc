// Calls that come while the executor lags start only after it has seen what ends them, in the order
// that the backlog promises. On a clock and a device of the test's, driven by Poll().

#include "verbena/rpc/server/backlog.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/executor/fake_device.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace backlog_test {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Numbers = std::vector<uint64_t>;

// The numbers from `from` to `to`, each `step` after the one before.
Numbers Range(uint64_t from, uint64_t to, uint64_t step = 1) {
  Numbers numbers;
  for (uint64_t number = from; number <= to; number += step) numbers.push_back(number);
  return numbers;
}

class BacklogTest : public ::testing::Test, private CompletionListener {
 protected:
  BacklogTest() {
    cq_ = *executor_->AddCq(device_, 1024, *this);
    backlog_.Watch();
  }
  ~BacklogTest() override {
    backlog_.RefuseAll(RefusalReason::kShuttingDown);
    backlog_.Stop();
    EXPECT_TRUE(executor_->RemoveCq(cq_).ok());
  }

  // From now on these are in the completion queue, in this order.
  void PushRequests(const Numbers& numbers) {
    for (const uint64_t number : numbers) device_.Push(cq_, number);
  }
  void PushCancels(const Numbers& numbers) {
    for (const uint64_t number : numbers) device_.Push(cq_, kCancel + number);
  }
  // A turn that does not end for a second.
  void Stall() {
    executor_->PostFunction([this] {
      (void)executor_->now();
      clock_.Advance(seconds(1));
    });
    EXPECT_TRUE(executor_->Poll());
  }
  // One turn. Returns the calls that it started.
  Numbers Turn() {
    executor_->Poll();
    return std::exchange(started_, {});
  }

  ManualClock clock_;
  FakeDevice device_;
  std::unique_ptr<Executor> executor_ =
      *Executor::Create({.waiter = WaiterKind::kEpoll, .clock = &clock_});
  CallBacklog backlog_{*executor_, /*is_always_asked=*/false};
  Duration handler_takes_{};
  bool reads_anew_ = false;  // each handler looks at the clock
  Numbers refused_;

 private:
  static constexpr uint64_t kCancel = 1'000'000;

  class Call final : public QueuedCall {
   public:
    Call(BacklogTest& test, uint64_t number) : test_(test), number_(number) {}
    void RunQueued() override {
      test_.started_.push_back(number_);
      test_.clock_.Advance(test_.handler_takes_);
      if (test_.reads_anew_) {
        test_.executor_->CheckLag();
        (void)test_.executor_->now();
      }
    }
    void RefuseQueued(RefusalReason) override { test_.refused_.push_back(number_); }

   private:
    BacklogTest& test_;
    const uint64_t number_;
  };

  // As a ServerSession does: a request starts its call, unless it has to wait. Its deadline reads
  // the clock.
  void OnCompletions(const ibv_wc* completions, int count) override {
    for (int i = 0; i < count; ++i) {
      const uint64_t number = completions[i].wr_id;
      if (number >= kCancel) {
        Call& call = *calls_.at(number - kCancel);
        if (call.waits()) backlog_.Remove(call);
        continue;
      }
      (void)executor_->now();
      Call& call = *(calls_[number] = std::make_unique<Call>(*this, number));
      if (backlog_.may_hold() && backlog_.holds()) {
        backlog_.Push(call);
      } else {
        call.RunQueued();
      }
    }
  }

  ibv_cq* cq_ = nullptr;
  std::map<uint64_t, std::unique_ptr<Call>> calls_;
  Numbers started_;
};

TEST_F(BacklogTest, CallsStartAsTheyComeIfTheExecutorDoesNotLag) {
  PushRequests({3, 1, 2});
  EXPECT_THAT(Turn(), ElementsAre(3, 1, 2));
  EXPECT_FALSE(backlog_.may_hold());
}

// More than one poll brings lie ahead of the CANCELs.
TEST_F(BacklogTest, NoCallStartsWhoseCancelHasCome) {
  Stall();
  PushRequests(Range(1, 200));
  PushCancels(Range(1, 200));
  EXPECT_THAT(Turn(), IsEmpty());
  EXPECT_EQ(backlog_.waiting(), 0u);
  EXPECT_FALSE(backlog_.holds()) << "the next call starts as it comes";
}

TEST_F(BacklogTest, ACancelThatComesWhileItsCallWaitsEndsIt) {
  Stall();
  PushRequests(Range(1, 100));
  EXPECT_EQ(Turn().size(), 32u);
  PushRequests(Range(201, 264));
  PushCancels(Range(201, 264));
  PushCancels(Range(1, 100));
  EXPECT_THAT(Turn(), IsEmpty());
}

TEST_F(BacklogTest, FewCallsStartInTheirOrder) {
  Stall();
  PushRequests(Range(1, 40));
  PushCancels(Range(1, 40, 2));
  EXPECT_EQ(Turn(), Range(2, 40, 2));
}

TEST_F(BacklogTest, OfManyTheNewestStartFirstAndOneInEightIsTheOldest) {
  Stall();
  PushRequests(Range(1, 100));
  EXPECT_THAT(Turn(), ElementsAre(100, 99, 98, 97, 96, 95, 94, 1, 93, 92, 91, 90, 89, 88, 87, 2, 86,
                                  85, 84, 83, 82, 81, 80, 3, 79, 78, 77, 76, 75, 74, 73, 4));
  EXPECT_EQ(Turn().size(), 32u);
  EXPECT_EQ(Turn().size(), 32u);
  EXPECT_TRUE(backlog_.holds());
  EXPECT_THAT(Turn(), ElementsAre(13, 14, 15, 16)) << "the rest, which is few";
  EXPECT_FALSE(backlog_.holds());
}

TEST_F(BacklogTest, CallsThatComeWhileOthersWaitGoAheadOfThem) {
  Stall();
  PushRequests(Range(1, 70));
  EXPECT_EQ(Turn().size(), 32u);
  PushRequests({200});
  EXPECT_EQ(Turn().front(), 200u);
}

// So that what ends the others is seen between two starts.
TEST_F(BacklogTest, ATurnStartsOneCallIfHandlersTakeLong) {
  Stall();
  PushRequests(Range(1, 10));
  handler_takes_ = CallBacklog::kTurnSlice;
  EXPECT_THAT(Turn(), ElementsAre(1));
  PushCancels({2});
  EXPECT_THAT(Turn(), ElementsAre(3));
  handler_takes_ = CallBacklog::kTurnSlice / 4;
  EXPECT_THAT(Turn(), ElementsAre(4, 5, 6, 7)) << "the clock is read after 1, 2 and 4";
  EXPECT_THAT(Turn(), ElementsAre(8, 9, 10));
}

// A handler may take so long that the executor lags again, and another then reads the clock.
TEST_F(BacklogTest, ALagWhileTheLastCallsStartHoldsWhatComesNext) {
  Stall();
  PushRequests(Range(1, 2));
  handler_takes_ = seconds(1);
  reads_anew_ = true;
  EXPECT_THAT(Turn(), ElementsAre(1));
  EXPECT_THAT(Turn(), ElementsAre(2));
  PushRequests(Range(3, 42));
  PushCancels(Range(3, 42));
  EXPECT_THAT(Turn(), IsEmpty());
}

TEST_F(BacklogTest, RefusesAllThatWait) {
  Stall();
  PushRequests(Range(1, 70));
  EXPECT_EQ(Turn().size(), 32u);
  backlog_.RefuseAll(RefusalReason::kShuttingDown);
  EXPECT_EQ(refused_.size(), 38u);
  EXPECT_TRUE(std::ranges::is_sorted(refused_));
  EXPECT_THAT(Turn(), IsEmpty());
  EXPECT_FALSE(backlog_.holds());
}

}  // namespace backlog_test
}  // namespace verbena::internal
