// A client that stops in the middle of a stream, or draws it out, keeps neither its call nor its
// handler nor memory for ever: the call ends in time, or the client loses its link.

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "tests/rpc/rogue_stream.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/testing/fake_clock.h"

namespace verbena::internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class StalledStreamTest : public HostileStreamTest {
 protected:
  // Lets the server's clock pass over its limits until a call has failed.
  void AwaitFailure() {
    Eventually(
        [this] {
          clock_.Advance(kMaxLandingWait);
          return server_->stats().failures == 1;
        },
        "the call is over");
  }

  MovedClock clock_;  // the server's
};

TEST_F(StalledStreamTest, AContextThatNeverComesEndsItsCallInTime) {
  Start(&clock_);
  Send({Carrying(Travelling(2000), Opening(kEcho, Streams::kBoth)), Beside("abc")});
  AwaitFailure();
  const RogueFrame response = ResponseOf(0);
  EXPECT_EQ(response.header.status_code, static_cast<uint8_t>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(response.header.outcome, static_cast<uint8_t>(Outcome::kNotExecuted));
  ExpectServed();
}

// The rogue has issued 8 credits, and the failure needs more SENDs.
TEST_F(StalledStreamTest, AClientThatDoesNotTakeAFailureLosesItsLink) {
  Start(&clock_);
  service_.detail_bytes = 100'000;
  testing::CountRequest request;
  request.set_code(static_cast<int>(absl::StatusCode::kAborted));
  Send({Opening(kCountMethod, Streams::kServer, 0, request.SerializeAsString())});
  Eventually(
      [this] {
        clock_.Advance(ServerOptions{}.response_grace);
        return server_runtime_->endpoint_stats(0).links_lost == 1;
      },
      "its link is closed");
  EXPECT_EQ(server_->stats().failures, 1u);
  EXPECT_TRUE(rogue_->IsDropped());
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

class StandingClockTest : public HostileStreamTest {
 protected:
  void TearDown() override {
    standing_.Run();
    HostileStreamTest::TearDown();
  }

  // The server's: no time passes but what the test lets pass.
  testing::FakeClock standing_;
};

// One frame for each half of the grace would take the call a quarter of an hour.
TEST_F(StandingClockTest, AClientDoesNotDrawAFailureOutBeyondTheGrace) {
  Start(&standing_);
  service_.detail_bytes = 250'000;
  testing::CountRequest request;
  request.set_code(static_cast<int>(absl::StatusCode::kAborted));
  Send({Opening(kCountMethod, Streams::kServer, 0, request.SerializeAsString())});
  while (rogue_->sends_received() < RoguePeer::kCredits) (void)rogue_->Receive();
  standing_.Advance(*server_runtime_, ServerOptions{}.response_grace - seconds(5));
  rogue_->Send(EncodeSend(Issuing(RoguePeer::kCredits + 1), {}));
  EXPECT_EQ(rogue_->Receive()[0].header.outcome, kBesideMessages) << "the next part";
  standing_.Advance(*server_runtime_, seconds(6));
  EXPECT_TRUE(rogue_->IsDropped());
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

TEST_F(StalledStreamTest, ARequestThatNeverComesEndsItsCallInTime) {
  Start(&clock_);
  RogueFrame apart = Opening(kCountMethod, Streams::kServer);
  apart.header.flags |= kFrameMessageApart;
  Send({apart});
  AwaitFailure();
  const RogueFrame response = ResponseOf(0);
  EXPECT_EQ(response.header.status_code, static_cast<uint8_t>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(response.header.outcome, static_cast<uint8_t>(Outcome::kNotExecuted));
  ExpectServed();
}

// The reply is larger than the stream's window, and waits until the client reads.
TEST_F(StalledStreamTest, AReplyThatItsClientDoesNotTakeEndsTheCallInTime) {
  Start(&clock_);
  service_.reply_filler = 1 << 20;
  std::optional<ClientWriter<testing::StreamItem, testing::Summary>> writer;
  auto begin = [&]() -> Task<absl::Status> {
    writer.emplace(stub_->Sum());
    VERBENA_CO_RETURN_IF_ERROR(co_await writer->Write(ItemOf(1)));
    co_return co_await writer->WritesDone();
  };
  EXPECT_EQ(Run(begin()), absl::OkStatus());
  Eventually([this] { return service_.read_ == 1 && service_.running == 0; }, "it has replied");
  AwaitFailure();
  auto finish = [&]() -> Task<absl::Status> {
    absl::StatusOr<testing::Summary> reply = co_await writer->Finish();
    writer.reset();
    co_return reply.status();
  };
  const absl::Status status = Run(finish());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

// The rest of the message is dropped with its Write, whatever the handler makes of that.
TEST_F(StalledStreamTest, AStreamWhoseLastMessageItsDeadlineCutDoesNotEndWell) {
  Start(&clock_);
  service_.shields = service_.forgives = true;
  testing::CountRequest request;
  request.set_count(1);
  request.set_bytes(1 << 20);
  RogueFrame opening = Opening(kCountMethod, Streams::kServer, 0, request.SerializeAsString());
  opening.header.set_deadline(microseconds(seconds(10)).count());
  Send({opening});
  EXPECT_EQ(rogue_->Receive()[0].header.kind, FrameKind::kStreamMessage);
  clock_.moved_by = seconds(10);
  Eventually([this] { return server_->stats().calls > 0 && service_.running == 0; },
             "the handler ends");
  // Room for the response.
  rogue_->Send(EncodeSend(Issuing(RoguePeer::kCredits + 32), {Request(kSay, 9, 0, ItemBytes(10))}));
  EXPECT_EQ(ResponseOf(0).header.status_code,
            static_cast<uint8_t>(absl::StatusCode::kDeadlineExceeded));
}

// The client answers PINGs, for all that the server knows, and issues no credits.
TEST_F(StalledStreamTest, AMessageOfAStreamThatItsClientDoesNotTakeEndsTheLink) {
  Start(&clock_);
  Send({Opening(kCountMethod, Streams::kServer, 0, ManyItems())});
  Eventually([this] { return service_.written_ > 0; }, "the handler writes");
  Eventually(
      [this] {
        clock_.Advance(ServerOptions().response_grace);
        return server_runtime_->endpoint_stats(0).links == 1;
      },
      "the link closes");
  Eventually([this] { return service_.running == 0; }, "the handler ends");
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

// Frozen, as by a debugger: its process is there, and its bootstrap connection.
TEST_F(StalledStreamTest, AClientThatFallsSilentWhileAHandlerReadsLosesItsLink) {
  Start(/*clock=*/nullptr, /*ping_interval=*/milliseconds(20));
  Send(OnEcho({}));
  EXPECT_TRUE(rogue_->IsDropped());
  Eventually([this] { return service_.running == 0; }, "the handler ends");
}

// By the time that its call comes, the checks have found a link that waits for nothing.
TEST_F(StandingClockTest, AClientThatFallsSilentBeforeItIsSentAnythingLosesItsLink) {
  Start(&standing_, /*ping_interval=*/milliseconds(20));
  standing_.Advance(*server_runtime_, milliseconds(300));
  Send(OnEcho({}));
  Eventually([this] { return service_.running == 1; }, "the handler reads");
  standing_.Advance(*server_runtime_, milliseconds(300));
  EXPECT_TRUE(rogue_->IsDropped());
  Eventually([this] { return service_.running == 0; }, "the handler ends");
}

TEST_F(StalledStreamTest, AClientThatFallsSilentBeforeItsContextLosesItsLink) {
  Start(/*clock=*/nullptr, /*ping_interval=*/milliseconds(20));
  Send({Carrying(Travelling(2000), Opening(kEcho, Streams::kBoth))});
  EXPECT_TRUE(rogue_->IsDropped());
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

}  // namespace
}  // namespace verbena::internal
