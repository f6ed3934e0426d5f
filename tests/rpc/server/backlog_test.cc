// Calls that come while the executor lags start only after it has seen what ends them, in the order
// and with the turns that the backlog promises. On a clock and a device of the test's, driven by
// Poll().

#include "verbena/rpc/server/backlog.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/executor/fake_device.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace backlog_test {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Numbers = std::vector<uint64_t>;

// The first numbers of calls of a second client at the address of the first, and of one elsewhere.
constexpr uint64_t kSibling = 10'000;
constexpr uint64_t kStranger = 20'000;

// The numbers from `from` to `to`, each `step` after the one before.
Numbers Range(uint64_t from, uint64_t to, uint64_t step = 1) {
  Numbers numbers;
  for (uint64_t number = from; number <= to; number += step) numbers.push_back(number);
  return numbers;
}

// Of a CQ that gets a completion for each one that is handled: a server whose clients send on for
// each receive that it posts.
class Refilled final : public CompletionListener {
 public:
  explicit Refilled(FakeDevice& device) : device_(device) {}
  void OnCompletions(const ibv_wc*, int count) override {
    for (int i = 0; i < count && goes_on; ++i) device_.Push(cq, 1);
  }
  ibv_cq* cq = nullptr;
  bool goes_on = true;

 private:
  FakeDevice& device_;
};

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
  // The same; returns the first `count` of them.
  Numbers First(size_t count) {
    Numbers started = Turn();
    EXPECT_GE(started.size(), count);
    started.resize(count);
    return started;
  }

  ManualClock clock_;
  FakeDevice device_;
  std::unique_ptr<Executor> executor_ =
      *Executor::Create({.waiter = WaiterKind::kEpoll, .clock = &clock_});
  CallBacklog backlog_{*executor_, /*is_always_asked=*/false};
  Duration handler_takes_{};
  std::vector<TimePoint> started_at_;  // as each call sees it
  Numbers refused_;

 private:
  static constexpr uint64_t kCancel = 1'000'000;

  class Call final : public QueuedCall {
   public:
    Call(BacklogTest& test, uint64_t number) : test_(test), number_(number) {}
    void RunQueued() override {
      test_.started_.push_back(number_);
      test_.started_at_.push_back(test_.executor_->now());
      test_.clock_.Advance(test_.handler_takes_);
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
        backlog_.Push(call, clients_[number / kSibling]);
      } else {
        call.RunQueued();
      }
    }
  }

  ibv_cq* cq_ = nullptr;
  SourceQueue host_;
  SourceQueue other_host_;
  ClientQueue clients_[3] = {ClientQueue(host_), ClientQueue(host_), ClientQueue(other_host_)};
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

// The calls of the one with many came last, and are the newest.
TEST_F(BacklogTest, ClientsTakeTurnsHoweverManyCallsOneHas) {
  Stall();
  PushRequests(Range(kStranger + 1, kStranger + 2));
  PushRequests(Range(1, 100));
  EXPECT_THAT(First(6), ElementsAre(kStranger + 2, 100, kStranger + 1, 99, 98, 97));
}

TEST_F(BacklogTest, AHostGainsNothingByManyClients) {
  Stall();
  PushRequests(Range(1, 50));
  PushRequests(Range(kSibling + 1, kSibling + 50));
  PushRequests(Range(kStranger + 1, kStranger + 50));
  EXPECT_THAT(First(6),
              ElementsAre(50, kStranger + 50, kSibling + 50, kStranger + 49, 49, kStranger + 48));
}

// Otherwise, with two clients, each start of an oldest call would be the same one's.
TEST_F(BacklogTest, OneInEightStartsOfEachClientIsItsOldest) {
  Stall();
  PushRequests(Range(1, 100));
  PushRequests(Range(kStranger + 1, kStranger + 100));
  const Numbers started = Turn();
  ASSERT_EQ(started.size(), 32u);
  EXPECT_EQ(started[14], 1u);
  EXPECT_EQ(started[15], kStranger + 1);
  EXPECT_EQ(started[30], 2u);
  EXPECT_EQ(started[31], kStranger + 2);
}

TEST_F(BacklogTest, FewCallsOfSeveralClientsTakeTurnsInTheirOrder) {
  Stall();
  PushRequests(Range(1, 3));
  PushRequests({kStranger + 1, kSibling + 1});
  EXPECT_THAT(Turn(), ElementsAre(1, kStranger + 1, kSibling + 1, 2, 3));
}

TEST_F(BacklogTest, AClientWhoseCallsHaveAllEndedHasNoTurn) {
  Stall();
  PushRequests({kStranger + 1, 1, kSibling + 1, 2});
  PushCancels({kStranger + 1, kSibling + 1});
  EXPECT_THAT(Turn(), ElementsAre(1, 2));
  Stall();
  PushRequests({kStranger + 3, 3, kSibling + 3});
  EXPECT_THAT(Turn(), ElementsAre(kStranger + 3, 3, kSibling + 3));
}

// What lies behind the last completion may end a call that lies before it.
TEST_F(BacklogTest, CallsWaitAsLongAsTheQueuesGiveMoreThanTheyHold) {
  Refilled refilled(device_);
  refilled.cq = *executor_->AddCq(device_, 64, refilled);
  device_.Push(refilled.cq, 1);
  Stall();
  PushRequests({1});
  EXPECT_THAT(Turn(), ElementsAre(1)) << "what ended it when the turn began would have been read";
  EXPECT_TRUE(backlog_.holds());
  PushRequests({2});
  PushCancels({2});
  EXPECT_THAT(Turn(), IsEmpty());
  refilled.goes_on = false;
  EXPECT_THAT(Turn(), IsEmpty());
  EXPECT_FALSE(backlog_.holds());
  EXPECT_TRUE(executor_->RemoveCq(refilled.cq).ok());
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
  EXPECT_THAT(Turn(), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(Turn(), ElementsAre(8, 9, 10));
}

// It may be too late for one behind a handler that took long.
TEST_F(BacklogTest, EachCallStartsAtATimeOfItsOwn) {
  Stall();
  PushRequests(Range(1, 4));
  handler_takes_ = CallBacklog::kTurnSlice / 5;
  EXPECT_THAT(Turn(), ElementsAre(1, 2, 3, 4));
  ASSERT_EQ(started_at_.size(), 4u);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(started_at_[i] - started_at_[i - 1], handler_takes_) << i;
}

// A handler may take so long that the executor lags again.
TEST_F(BacklogTest, ALagWhileTheLastCallsStartHoldsWhatComesNext) {
  Stall();
  PushRequests(Range(1, 2));
  handler_takes_ = seconds(1);
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
  EXPECT_THAT(Turn(), IsEmpty());
  EXPECT_FALSE(backlog_.holds());
}

// The queue of a server with max_running, which lets its calls wait there.
class AdmissionLagTest : public ::testing::Test, private CompletionListener {
 protected:
  AdmissionLagTest() {
    cq_ = *executor_->AddCq(device_, 1024, *this);
    refilled_.cq = *executor_->AddCq(device_, 64, refilled_);
    admission_.Watch();
  }
  ~AdmissionLagTest() override {
    admission_.RefuseAll(RefusalReason::kShuttingDown);
    for (Call& call : calls_) admission_.Release(call, 0);
    admission_.Stop();
    for (ibv_cq* cq : {cq_, refilled_.cq}) EXPECT_TRUE(executor_->RemoveCq(cq).ok());
  }

  static constexpr uint64_t kRequest = 1;
  static constexpr uint64_t kCancel = 2;  // of the latest request
  static constexpr uint64_t kOther = 3;

  ManualClock clock_;
  FakeDevice device_;
  std::unique_ptr<Executor> executor_ =
      *Executor::Create({.waiter = WaiterKind::kEpoll, .clock = &clock_});
  Refilled refilled_{device_};
  ibv_cq* cq_ = nullptr;
  int started_ = 0;

 private:
  class Call final : public QueuedCall {
   public:
    explicit Call(AdmissionLagTest& test) : test_(test) {}
    void RunQueued() override { ++test_.started_; }
    void RefuseQueued(RefusalReason) override {}

   private:
    AdmissionLagTest& test_;
  };

  void OnCompletions(const ibv_wc* completions, int count) override {
    (void)executor_->now();
    for (int i = 0; i < count; ++i) {
      if (completions[i].wr_id == kRequest) {
        Call& call = calls_.emplace_back(*this);
        admission_.Count(call, 0, CallClass::kNormal, 0, client_);
        admission_.Enqueue(call);
      } else if (completions[i].wr_id == kCancel && calls_.back().waits()) {
        admission_.Leave(calls_.back());
      }
    }
  }

  const MethodTable methods_;
  Admission admission_{*executor_, methods_,
                       AdmissionOptions{.max_running = 64, .max_queue_age = hours(1)}};
  SourceQueue source_;
  ClientQueue client_{source_};
  std::deque<Call> calls_;
};

TEST_F(AdmissionLagTest, AQueuePollsOnUntilItHasReadAll) {
  executor_->PostFunction([this] {
    (void)executor_->now();
    clock_.Advance(seconds(1));
  });
  EXPECT_TRUE(executor_->Poll());
  device_.Push(refilled_.cq, kOther);
  for (int i = 0; i < 2; ++i) device_.Push(cq_, kRequest);
  EXPECT_TRUE(executor_->Poll());
  EXPECT_EQ(started_, 1) << "one in a turn, since handlers may take long";
  refilled_.goes_on = false;
  // More than one poll takes.
  for (int i = 0; i < 40; ++i) device_.Push(cq_, kOther);
  device_.Push(cq_, kCancel);
  EXPECT_TRUE(executor_->Poll());
  EXPECT_EQ(started_, 1) << "the CANCEL of the second lay in the queue";
}

}  // namespace backlog_test
}  // namespace verbena::internal
