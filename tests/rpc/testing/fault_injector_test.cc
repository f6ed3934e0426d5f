// A FaultInjector delays, loses and fails the calls that it is told to, and no
// others. The outcome that the caller hears is true: the server has run a call
// if and only if the fault says so.

#include "verbena/rpc/testing/fault_injector.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/testing/notes.verbena.pb.h"
#include "tests/rpc/testing/notes_service.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace verbena::testing::notes {
namespace fault_injector_test {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FaultInjectorTest : public ::testing::Test {
 protected:
  static Task<absl::StatusOr<Text>> EchoOnce(Channel& channel, Deadline deadline) {
    co_return co_await Notes::Stub(channel).Echo(TextOf("a"), {.deadline = deadline});
  }
  absl::StatusOr<Text> Echo() { return notes_.Run(EchoOnce(notes_.channel(), {})); }
  // A call that waits for a deadline.
  JoinHandle<absl::StatusOr<Text>> Begin(Deadline deadline) {
    return notes_.runtime().Spawn(EchoOnce(notes_.channel(), deadline));
  }

  std::shared_ptr<FaultInjector> faults_ = std::make_shared<FaultInjector>();
  InProcess<NotesService> notes_{
      InProcessOptions{.channel = {.interceptors = {faults_}}, .fake_clock = true}};
};

TEST_F(FaultInjectorTest, WithoutAFaultCallsPass) {
  EXPECT_THAT(Echo(), IsOk());
  EXPECT_EQ(faults_->injected(), 0u);
}

TEST_F(FaultInjectorTest, ACallThatIsNotExecutedDoesNotReachTheServer) {
  faults_->Add({.fail = absl::UnavailableError("full")});
  EXPECT_THAT(Echo(), AllOf(StatusIs(absl::StatusCode::kUnavailable, HasSubstr("full")),
                            HasOutcome(Outcome::kNotExecuted)));
  EXPECT_EQ(notes_.service().echoes, 0);
  EXPECT_EQ(faults_->injected(), 1u);
  faults_->Clear();
  EXPECT_THAT(Echo(), IsOk());
}

TEST_F(FaultInjectorTest, ACallThatIsExecutedReachesTheServerAndFailsAllTheSame) {
  int echoes = 0;
  for (const Outcome outcome : {Outcome::kExecuted, Outcome::kMaybeExecuted}) {
    faults_->Add({.times = 1, .fail = absl::UnavailableError("lost"), .outcome = outcome});
    EXPECT_THAT(Echo(), AllOf(StatusIs(absl::StatusCode::kUnavailable, HasSubstr("lost")),
                              HasOutcome(outcome)));
    EXPECT_EQ(notes_.service().echoes, ++echoes);
    faults_->Clear();
  }
}

TEST_F(FaultInjectorTest, ACallThatCannotReachTheServerIsNotSaidToBeExecuted) {
  faults_->Add({.fail = absl::InternalError("fault"), .outcome = Outcome::kExecuted});
  Channel nowhere(notes_.runtime(), "127.0.0.1:1", {.interceptors = {faults_}});
  EXPECT_THAT(notes_.Run(EchoOnce(nowhere, {})),
              AllOf(StatusIs(absl::StatusCode::kUnavailable), HasOutcome(Outcome::kNotExecuted)));
}

TEST_F(FaultInjectorTest, AFaultHappensToTheCallsThatItNames) {
  faults_->Add({.method = "Echo", .after = 2, .times = 1, .fail = absl::AbortedError("third")});
  faults_->Add({.method = "Wait", .fail = absl::AbortedError("wait")});
  EXPECT_THAT(Echo(), IsOk());
  EXPECT_THAT(notes_.Run(Notes::Stub(notes_.channel()).Wait(Text())),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("wait")));
  EXPECT_THAT(Echo(), IsOk());
  EXPECT_THAT(Echo(), StatusIs(absl::StatusCode::kAborted, HasSubstr("third")));
  EXPECT_THAT(Echo(), IsOk());
  faults_->Add({.method = "verbena.testing.notes.Notes/Echo", .fail = absl::AbortedError("full")});
  EXPECT_THAT(Echo(), StatusIs(absl::StatusCode::kAborted, HasSubstr("full")));
}

TEST_F(FaultInjectorTest, ADelayIsOfTheExecutorsClockAndCountsAgainstTheDeadline) {
  ASSERT_THAT(Echo(), IsOk());
  faults_->Add({.delay = 1min});
  auto patient = Begin(2min);
  notes_.Advance(1min - 1ns);
  EXPECT_FALSE(patient.done());
  EXPECT_EQ(notes_.service().echoes, 1);
  notes_.Advance(1ns);
  EXPECT_THAT(patient.Join(), IsOk());
  auto hasty = Begin(30s);
  notes_.Advance(30s);
  EXPECT_THAT(hasty.Join(), AllOf(StatusIs(absl::StatusCode::kDeadlineExceeded),
                                  HasOutcome(Outcome::kNotExecuted)));
  EXPECT_EQ(notes_.service().echoes, 2);
}

TEST_F(FaultInjectorTest, ALostRequestOrReplyEndsAtTheDeadline) {
  ASSERT_THAT(Echo(), IsOk());
  faults_->Add({.times = 1, .drop_request = true});
  faults_->Add({.after = 1, .drop_reply = true});
  for (const int echoes : {1, 2}) {
    auto call = Begin(10s);
    // Over a network the handler does not run at once, and time must not overtake it.
    while (notes_.service().echoes < echoes) notes_.Advance(Duration::zero());
    notes_.Advance(10s - 1ns);
    EXPECT_FALSE(call.done());
    notes_.Advance(1ns);
    EXPECT_THAT(call.Join(), AllOf(StatusIs(absl::StatusCode::kDeadlineExceeded),
                                   HasOutcome(Outcome::kMaybeExecuted)));
    EXPECT_EQ(notes_.service().echoes, echoes) << "a lost reply's handler has run";
  }
}

TEST_F(FaultInjectorTest, ALostCallEndsWhenItIsCancelled) {
  faults_->Add({.drop_request = true});
  auto call = Begin({});
  call.RequestCancel();
  EXPECT_THAT(call.Join(), StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace fault_injector_test
}  // namespace verbena::testing::notes
