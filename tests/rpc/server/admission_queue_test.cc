// The order in which calls that wait are started, and when they are refused, on a clock that the
// test moves.

#include "verbena/rpc/server/admission.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"

namespace verbena::internal {
namespace admission_queue_test {

using std::chrono::microseconds;
using std::chrono::milliseconds;

using Names = std::vector<std::string>;

class AdmissionQueueTest : public ::testing::Test {
 protected:
  class Call final : public QueuedCall {
   public:
    Call(AdmissionQueueTest& test, std::string name) : test_(test), name_(std::move(name)) {}
    void RunQueued() override {
      test_.started_.push_back(name_);
      if (test_.handler_takes_ > Duration::zero()) test_.time_ += test_.handler_takes_;
      if (test_.handlers_end_) test_.queue_->EndRun(*this);
    }
    void RefuseQueued(RefusalReason reason) override {
      EXPECT_EQ(reason, RefusalReason::kQueueTooOld);
      test_.refused_.push_back(name_);
    }

   private:
    AdmissionQueueTest& test_;
    const std::string name_;
  };

  ~AdmissionQueueTest() override {
    queue_->RefuseAll(RefusalReason::kQueueTooOld);
    queue_->Stop();
  }

  void Make(AdmissionOptions options) {
    queue_ = std::make_unique<AdmissionQueue>(scheduler_, options);
  }
  Call& Push(ClientQueue& client, std::string name, CallClass its_class = CallClass::kNormal) {
    Call& call = calls_.emplace_back(*this, std::move(name));
    call.SetAdmitted(client, its_class, 0);
    queue_->Push(call);
    return call;
  }
  void PushMany(ClientQueue& client, int count, CallClass its_class = CallClass::kNormal) {
    for (int i = 0; i < count; ++i) Push(client, "call", its_class);
  }
  // Turns, until none starts a call.
  std::vector<std::string> RunAll() {
    while (queue_->can_run()) RunTurn();
    return std::exchange(started_, {});
  }
  std::vector<std::string> RunTurn() {
    queue_->RunTurn();
    scheduler_.AdvanceBy(std::exchange(time_, Duration::zero()));
    return started_;
  }
  // A call of elsewhere_ finds places free, now and then, and at last four of them in one turn.
  void ExpectNoOtherIsRefusedWhile(const std::function<void()>& push_blocked) {
    const auto run = [this](size_t calls) {
      for (size_t i = 0; i < calls; ++i) {
        EXPECT_EQ(queue_->Check(elsewhere_, CallClass::kNormal), std::nullopt) << i;
        Push(elsewhere_, "elsewhere");
      }
      EXPECT_EQ(RunAll(), Names(calls, "elsewhere"));
    };
    for (int tenths = 0; tenths < 120; ++tenths) {
      if (tenths % 3 == 0) push_blocked();
      if (tenths % 4 == 0) run(1);
      scheduler_.AdvanceBy(microseconds(100));
    }
    run(4);
    EXPECT_FALSE(refused_.empty()) << "the blocked ones only age";
  }

  ManualScheduler scheduler_;
  SourceQueue source_, other_source_;
  ClientQueue a_{source_}, b_{source_}, c_{source_}, elsewhere_{other_source_};
  std::unique_ptr<AdmissionQueue> queue_;
  std::deque<Call> calls_;
  std::vector<std::string> started_, refused_;
  bool handlers_end_ = true;
  Duration handler_takes_{};
  Duration time_{};
};

TEST_F(AdmissionQueueTest, ClientsTakeTurns) {
  Make({.max_running = 64});
  for (const char* name : {"a1", "a2", "a3", "a4"}) Push(a_, name);
  Push(b_, "b1");
  Push(b_, "b2");
  Push(c_, "c1");
  EXPECT_EQ(RunAll(), (Names{"a1", "b1", "c1", "a2", "b2", "a3", "a4"}));
  EXPECT_EQ(queue_->waiting(), 0u);
}

TEST_F(AdmissionQueueTest, ControlCallsPassOthersAndLeaveThemAQuarter) {
  Make({.max_running = 1});
  for (const char* name : {"n1", "n2", "n3"}) Push(a_, name);
  for (const char* name : {"c1", "c2", "c3", "c4", "c5"}) Push(b_, name, CallClass::kControl);
  EXPECT_EQ(RunAll(), (Names{"c1", "c2", "c3", "n1", "c4", "c5", "n2", "n3"}));
}

TEST_F(AdmissionQueueTest, ControlCallsRunWhileAllPlacesAreTaken) {
  Make({.max_running = 2, .max_running_per_client = 2});
  handlers_end_ = false;
  for (const char* name : {"n1", "n2", "n3"}) Push(a_, name);
  EXPECT_EQ(RunAll(), (Names{"n1", "n2"}));
  EXPECT_FALSE(queue_->can_run());
  Push(a_, "c1", CallClass::kControl);
  EXPECT_EQ(RunAll(), (Names{"c1"}));
}

TEST_F(AdmissionQueueTest, BackgroundCallsRunWhileNormalOnesWait) {
  Make({.max_running = 1});
  Push(a_, "b1", CallClass::kBackground);
  Push(a_, "b2", CallClass::kBackground);
  for (int i = 0; i < 9; ++i) Push(b_, "n");
  EXPECT_EQ(RunAll(), (Names{"n", "n", "n", "n", "n", "n", "n", "b1", "n", "n", "b2"}));
}

TEST_F(AdmissionQueueTest, BackgroundCallsLeaveHalfOfThePlacesToOthers) {
  Make({.max_running = 4, .max_running_per_client = 4});
  handlers_end_ = false;
  PushMany(a_, 4, CallClass::kBackground);
  EXPECT_EQ(RunAll().size(), 2u);
  PushMany(b_, 4);
  EXPECT_EQ(RunAll().size(), 2u);
}

TEST_F(AdmissionQueueTest, AClientRunsHalfOfAllAndGoesOnWhenOneEnds) {
  Make({.max_running = 4});
  handlers_end_ = false;
  Call& first = Push(a_, "a1");
  for (const char* name : {"a2", "a3", "a4"}) Push(a_, name);
  EXPECT_EQ(RunAll(), (Names{"a1", "a2"}));
  Push(b_, "b1");
  EXPECT_EQ(RunAll(), (Names{"b1"}));
  queue_->EndRun(first);
  queue_->EndRun(first);  // the second time does nothing
  EXPECT_EQ(RunAll(), (Names{"a3"}));
}

// A source with many runtime ids has many clients.
TEST_F(AdmissionQueueTest, TheClientsOfOneSourceLeaveAQuarterToOthers) {
  Make({.max_running = 4});
  handlers_end_ = false;
  Call& first = Push(a_, "a1");
  Push(b_, "b1");
  Push(a_, "a2");
  Push(b_, "b2");
  Push(c_, "c1");
  EXPECT_EQ(RunAll(), (Names{"a1", "b1", "c1"}));
  Push(elsewhere_, "other");
  EXPECT_EQ(RunAll(), (Names{"other"}));
  queue_->EndRun(first);
  EXPECT_EQ(RunAll(), (Names{"a2"}));
}

TEST_F(AdmissionQueueTest, ACallThatLeavesGivesTheNextItsSourcesPlace) {
  Make({.max_running = 4});
  handlers_end_ = false;
  Call& first = Push(a_, "a1");
  Push(b_, "b1");
  Push(c_, "c1");
  EXPECT_EQ(RunAll().size(), 3u);
  Call& leaves = Push(a_, "a2");
  Push(b_, "b2");
  EXPECT_EQ(RunAll(), Names()) << "the source runs as many as it may";
  queue_->EndRun(first);
  queue_->Remove(leaves);
  EXPECT_EQ(RunAll(), (Names{"b2"}));
}

TEST_F(AdmissionQueueTest, AClientsClassesShareItsPlaces) {
  Make({.max_running = 2});
  handlers_end_ = false;
  Call& normal = Push(a_, "normal");
  Push(a_, "background", CallClass::kBackground);
  EXPECT_EQ(RunAll(), (Names{"normal"}));
  queue_->EndRun(normal);
  EXPECT_EQ(RunAll(), (Names{"background"}));
}

TEST_F(AdmissionQueueTest, AClientHasNoMorePlacesThanAreFree) {
  Make({.max_running = 1, .max_queued = 8});
  int taken = 0;
  while (!queue_->Check(a_, CallClass::kNormal).has_value()) PushMany(a_, 1), ++taken;
  EXPECT_EQ(taken, 4);
  EXPECT_EQ(queue_->Check(a_, CallClass::kNormal), RefusalReason::kQueueFull);
  while (!queue_->Check(b_, CallClass::kNormal).has_value()) PushMany(b_, 1), ++taken;
  EXPECT_EQ(taken, 6);
  EXPECT_EQ(queue_->Check(elsewhere_, CallClass::kNormal), std::nullopt);
  EXPECT_EQ(queue_->Check(a_, CallClass::kControl), std::nullopt) << "it has its own places";
}

TEST_F(AdmissionQueueTest, TheClientsOfOneSourceLeaveAQuarterOfTheQueue) {
  Make({.max_running = 1, .max_queued = 8});
  PushMany(a_, 4);
  PushMany(b_, 1);
  EXPECT_EQ(queue_->Check(c_, CallClass::kNormal), std::nullopt);
  PushMany(b_, 1);
  EXPECT_EQ(queue_->Check(c_, CallClass::kNormal), RefusalReason::kQueueFull);
  EXPECT_EQ(queue_->Check(elsewhere_, CallClass::kNormal), std::nullopt);
}

TEST_F(AdmissionQueueTest, BackgroundCallsHaveHalfOfTheQueue) {
  Make({.max_running = 1, .max_queued = 4});
  PushMany(a_, 1, CallClass::kBackground);
  PushMany(b_, 1, CallClass::kBackground);
  EXPECT_EQ(queue_->Check(c_, CallClass::kBackground), RefusalReason::kQueueFull);
  EXPECT_EQ(queue_->Check(c_, CallClass::kNormal), std::nullopt);
}

TEST_F(AdmissionQueueTest, ACallThatHasWaitedTooLongIsRefused) {
  Make({.max_running = 1, .max_queue_age = milliseconds(2)});
  handlers_end_ = false;
  Push(a_, "runs");
  EXPECT_EQ(RunAll(), (Names{"runs"}));
  Push(a_, "old");
  scheduler_.AdvanceBy(milliseconds(1));
  Push(b_, "young");
  scheduler_.AdvanceBy(microseconds(999));
  EXPECT_EQ(refused_, Names());
  scheduler_.AdvanceBy(microseconds(1));
  EXPECT_EQ(refused_, (Names{"old"})) << "though no turn came";
  scheduler_.AdvanceBy(milliseconds(1));
  EXPECT_EQ(refused_, (Names{"old", "young"}));
}

TEST_F(AdmissionQueueTest, ACallThatLeavesIsNeitherStartedNorRefused) {
  Make({.max_running = 1, .max_queue_age = milliseconds(2)});
  Call& leaves = Push(a_, "leaves");
  Push(a_, "stays");
  queue_->Remove(leaves);
  EXPECT_EQ(RunAll(), (Names{"stays"}));
  scheduler_.AdvanceBy(milliseconds(3));
  EXPECT_EQ(refused_, Names());
}

// Handlers that never suspend.
TEST_F(AdmissionQueueTest, SlowHandlersRunOneInATurnAndFastOnesTogether) {
  Make({.max_running = 64, .max_running_per_client = 64, .max_queue_age = milliseconds(100)});
  handler_takes_ = microseconds(50);
  PushMany(a_, 10);
  EXPECT_EQ(RunTurn().size(), 1u) << "nothing is known of them";
  EXPECT_EQ(RunTurn().size(), 2u);
  EXPECT_EQ(RunTurn().size(), 3u);
  RunAll();
  handler_takes_ = microseconds(2);
  PushMany(a_, 100);
  size_t most = 0, before = 0;
  while (queue_->can_run()) {
    RunTurn();
    most = std::max(most, started_.size() - before);
    before = started_.size();
  }
  EXPECT_GE(most, 5u);
  EXPECT_LE(most, AdmissionQueue::kMaxStartsPerTurn);
}

TEST_F(AdmissionQueueTest, ACallThatWouldWaitTooLongIsRefusedAtOnce) {
  Make({.max_running = 64, .max_running_per_client = 64, .max_queue_age = milliseconds(1)});
  handler_takes_ = microseconds(100);
  PushMany(a_, 12);
  EXPECT_EQ(queue_->Check(a_, CallClass::kNormal), std::nullopt) << "nothing is known of them";
  RunTurn();
  RunTurn();
  // Ten wait, each of which takes a tenth of the longest wait.
  EXPECT_EQ(queue_->Check(a_, CallClass::kNormal), std::nullopt);
  PushMany(a_, 1);
  EXPECT_EQ(queue_->Check(a_, CallClass::kNormal), RefusalReason::kQueueTooOld);
  EXPECT_EQ(queue_->Check(b_, CallClass::kNormal), std::nullopt) << "it is next";
  EXPECT_EQ(queue_->Check(a_, CallClass::kControl), std::nullopt) << "it is first";
  EXPECT_EQ(queue_->Check(b_, CallClass::kBackground), std::nullopt) << "each eighth is one";
  PushMany(b_, 1, CallClass::kBackground);
  EXPECT_EQ(queue_->Check(b_, CallClass::kBackground), RefusalReason::kQueueTooOld);
  RunAll();
  EXPECT_EQ(queue_->Check(a_, CallClass::kNormal), std::nullopt) << "nobody waits";
}

TEST_F(AdmissionQueueTest, CallsOfAHigherClassLeaveRoomAtTheDoor) {
  Make({.max_running = 64, .max_running_per_client = 64, .max_queue_age = milliseconds(1)});
  handler_takes_ = microseconds(100);
  PushMany(a_, 14, CallClass::kControl);
  RunTurn();
  RunTurn();
  // Twelve wait, and ten would take the longest wait.
  EXPECT_EQ(queue_->Check(a_, CallClass::kControl), RefusalReason::kQueueTooOld);
  EXPECT_EQ(queue_->Check(b_, CallClass::kNormal), std::nullopt) << "each fourth is one";
  Push(b_, "normal");
  RunTurn();
  RunTurn();
  EXPECT_EQ(std::count(started_.begin(), started_.end(), "normal"), 1);
}

// A host may claim a hundred runtime ids.
TEST_F(AdmissionQueueTest, SourcesTakeTurnsHoweverManyClientsTheyHave) {
  Make({.max_running = 64, .max_running_per_client = 64, .max_queue_age = milliseconds(1)});
  handler_takes_ = microseconds(100);
  std::deque<ClientQueue> many;
  for (int i = 0; i < 14; ++i) PushMany(many.emplace_back(source_), 1);
  RunTurn();
  RunTurn();
  EXPECT_EQ(queue_->Check(a_, CallClass::kNormal), RefusalReason::kQueueTooOld);
  EXPECT_EQ(queue_->Check(elsewhere_, CallClass::kNormal), std::nullopt);
  Push(elsewhere_, "elsewhere");
  RunTurn();
  RunTurn();
  EXPECT_EQ(std::count(started_.begin(), started_.end(), "elsewhere"), 1);
  queue_->RefuseAll(RefusalReason::kQueueTooOld);  // before their clients end
}

// As those of a FileBootstrap, which names no host.
TEST_F(AdmissionQueueTest, ClientsOfAnUnboundedSourceHaveATurnEach) {
  Make({.max_running = 1});
  SourceQueue unbounded(false);
  ClientQueue d(unbounded), e(unbounded);
  for (const char* name : {"d1", "d2"}) Push(d, name);
  for (const char* name : {"e1", "e2"}) Push(e, name);
  for (const char* name : {"a1", "a2"}) Push(a_, name);
  Push(b_, "b1");
  EXPECT_EQ(RunAll(), (Names{"d1", "e1", "a1", "d2", "e2", "b1", "a2"}));
  queue_->RefuseAll(RefusalReason::kQueueTooOld);  // before their clients end
}

TEST_F(AdmissionQueueTest, CallsThatTheirOwnClientHoldsBackRefuseNoOther) {
  Make({.max_running = 4, .max_queue_age = milliseconds(1)});
  handlers_end_ = false;
  PushMany(a_, 2);
  EXPECT_EQ(RunAll().size(), 2u) << "these never end";
  handlers_end_ = true;
  ExpectNoOtherIsRefusedWhile([this] { PushMany(a_, 1); });
}

TEST_F(AdmissionQueueTest, BackgroundCallsThatAreHeldBackRefuseNoOther) {
  Make({.max_running = 4, .max_running_per_client = 4, .max_queue_age = milliseconds(1)});
  handlers_end_ = false;
  PushMany(a_, 2, CallClass::kBackground);
  EXPECT_EQ(RunAll().size(), 2u) << "these never end";
  handlers_end_ = true;
  ExpectNoOtherIsRefusedWhile([this] { PushMany(b_, 1, CallClass::kBackground); });
}

}  // namespace admission_queue_test
}  // namespace verbena::internal
