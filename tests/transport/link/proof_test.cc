// A client's link is ready once SENDs have made the way there and back, short ones and one that
// fills a packet. A link that carries nothing, or short SENDs alone, fails in words that tell the
// two apart.

#include "verbena/transport/link/proof.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/passing_stream.h"
#include "tests/transport/connect/scripted_stream.h"
#include "tests/transport/link/black_hole.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {
namespace proof_test {

class ProofTest : public LinksFixture {
 protected:
  void SetUp() override {
    Start({}, {});
    clock().Stop();
    hole_.emplace(context());
  }
  void TearDown() override {
    hole_->Close();
    LinksFixture::TearDown();
    hole_.reset();
  }

  // Whatever profile the run has: these tests count on a path of 4096 bytes.
  SoftDeviceOptions device_options() const override {
    return {.shared_memory = false,
            .profile = SoftProfile(),
            .tcp = TcpWireOptions{.address = "127.0.0.1"}};
  }

  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    if (is_held_up_) {
      // As by a handler that blocks in the turn in which the client sends its Ready, its second
      // message. The proof begins in that turn.
      return std::make_unique<ScriptedStream>(
          std::move(stream),
          ScriptedStream::Script{
              .after_send = [this](MessageStream&, int message) -> Task<absl::Status> {
                (void)executor().now();
                if (message == 2) clock().Advance(kProofTime);
                co_return absl::OkStatus();
              }});
    }
    if (!is_older_) return stream;
    return std::make_unique<OtherHello>(std::move(stream), [](const LinkParameters& hello) {
      return EncodeHello(hello, {.features = kSupportedFeatures & ~kFeaturePaddedPing});
    });
  }

  // Begins to connect, polls until a SEND is swallowed, and then lets kProofTime pass. Returns how
  // that ended.
  absl::Status ConnectAndWait() {
    proof_time = kProofTime;
    return ConnectUntilSwallowed([this] { clock().Advance(kProofTime); });
  }
  // The same without a limit, but the device gives the link up.
  absl::Status ConnectAndBreak() {
    return ConnectUntilSwallowed([this] {
      Link* const link = client().OpenLink({.slot = 0, .generation = 0});
      ASSERT_NE(link, nullptr);
      link->Break(absl::UnavailableError("the network lost its packets"));
    });
  }
  absl::Status ConnectUntilSwallowed(const std::function<void()>& then) {
    std::optional<absl::StatusOr<Link*>> link;
    BeginConnect(at_client_, at_server_, link);
    PollUntil([this] { return hole_->swallowed() > 0; });
    EXPECT_FALSE(link.has_value());
    then();
    PollUntil([&link] { return link.has_value(); });
    return link->status();
  }

  std::optional<BlackHole> hole_;
  bool is_older_ = false;
  bool is_held_up_ = false;
  Receiver at_client_;
  Receiver at_server_;
};

TEST_F(ProofTest, ALinkIsReadyOnceAPacketWasFilledBothWays) {
  Link* link = Connect(at_client_, at_server_);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->packet_bytes(), 4096u);
  EXPECT_EQ(link->packet_padding(), 4096u - sizeof(SendHeader) - sizeof(FrameHeader));
  EXPECT_GE(link->stats().bytes_received, 4096u);
  EXPECT_GE((**accepted())->stats().bytes_received, 4096u);
}

TEST_F(ProofTest, ALinkThatCarriesNothingFails) {
  hole_->SwallowOver(0);
  const absl::Status failed = ConnectAndWait();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_NE(failed.message().find("carried nothing"), std::string::npos) << failed;
  EXPECT_NE(failed.message().find("within 1000 ms"), std::string::npos) << failed;
  EXPECT_EQ(at_client_.reason(), failed);
  clock().GoOn();
  WaitUntilNoLinks();
}

TEST_F(ProofTest, ALinkThatCarriesShortSendsAloneFailsAndNamesTheMtu) {
  hole_->SwallowOver(1500);
  const absl::Status failed = ConnectAndWait();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_NE(failed.message().find("none of 4096 bytes"), std::string::npos) << failed;
  EXPECT_NE(failed.message().find("smaller MTU"), std::string::npos) << failed;
  // The client cannot tell why a packet does not come.
  EXPECT_NE(failed.message().find("LinkLimits::send_buffers"), std::string::npos) << failed;
}

TEST_F(ProofTest, ALongTurnBeforeItTakesNoneOfItsTime) {
  is_held_up_ = true;
  proof_time = kProofTime;
  EXPECT_NE(Connect(at_client_, at_server_), nullptr);
}

TEST_F(ProofTest, AFailedOneTellsItsOwnTimeAndNotThatOfALongTurn) {
  is_held_up_ = true;
  hole_->SwallowOver(0);
  const absl::Status failed = ConnectAndWait();
  EXPECT_NE(failed.message().find("within 1000 ms"), std::string::npos) << failed;
}

TEST_F(ProofTest, AFailedOneTellsTheTimeOfALongTurnInWhichItEnds) {
  hole_->SwallowOver(0);
  proof_time = kProofTime;
  const absl::Status failed = ConnectUntilSwallowed([this] {
    clock().Advance(kProofTime);
    // Runs between the timer of the limit and the proof that it wakes.
    executor().PostFunction([this] {
      (void)executor().now();
      clock().Advance(5 * kProofTime);
    });
  });
  EXPECT_NE(failed.message().find("within 6000 ms"), std::string::npos) << failed;
}

// Devices have retries of their own, which may end before the proof does.
TEST_F(ProofTest, ALinkThatItsDeviceGivesUpSaysHowFarItCame) {
  hole_->SwallowOver(0);
  const absl::Status nothing = ConnectAndBreak();
  EXPECT_EQ(nothing.code(), absl::StatusCode::kUnavailable) << nothing;
  EXPECT_NE(nothing.message().find("carried nothing: the network lost its packets"),
            std::string::npos)
      << nothing;
}

TEST_F(ProofTest, ALinkThatItsDeviceGivesUpOverAFullPacketNamesTheMtu) {
  hole_->SwallowOver(1500);
  const absl::Status short_alone = ConnectAndBreak();
  EXPECT_EQ(short_alone.code(), absl::StatusCode::kUnavailable) << short_alone;
  EXPECT_NE(short_alone.message().find("none of 4096 bytes: the network lost its packets"),
            std::string::npos)
      << short_alone;
  EXPECT_NE(short_alone.message().find("smaller MTU"), std::string::npos) << short_alone;
}

TEST_F(ProofTest, AnOlderPeerIsAskedForNoPadding) {
  is_older_ = true;
  hole_->SwallowOver(1500);
  Link* link = Connect(at_client_, at_server_);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->packet_padding(), 0u);
  EXPECT_EQ(hole_->swallowed(), 0u);
}

TEST_F(ProofTest, ALinkThatIsLostBeforeItIsReadySaysWhy) {
  hole_->SwallowOver(0);
  std::optional<absl::StatusOr<Link*>> link;
  BeginConnect(at_client_, at_server_, link);
  PollUntil([this] { return hole_->swallowed() > 0 && accepted().has_value(); });
  (**accepted())->Close(absl::CancelledError("the server has enough"));
  PollUntil([&link] { return link.has_value(); });
  EXPECT_EQ(link->status().code(), absl::StatusCode::kUnavailable) << link->status();
  EXPECT_NE(link->status().message().find(std::string(at_client_.reason().message())),
            std::string::npos)
      << link->status();
}

TEST_F(ProofTest, AnAttemptThatIsGivenUpLeavesNoLink) {
  hole_->SwallowOver(0);
  CancelScope scope;
  absl::StatusOr<Link*> link;
  bool ended = false;
  auto run = [](Task<absl::StatusOr<Link*>> attempt, CancelScope& given_up,
                absl::StatusOr<Link*>& result, bool& done) -> Task<void> {
    result = co_await std::move(attempt).In(&given_up);
    done = true;
  };
  Spawn(executor(), run(ConnectBoth(at_client_, at_server_), scope, link, ended));
  PollUntil([this] { return hole_->swallowed() > 0; });
  scope.Request();
  PollUntil([&ended] { return ended; });
  EXPECT_EQ(link.status().code(), absl::StatusCode::kCancelled) << link.status();
  clock().GoOn();
  EXPECT_TRUE(DoneInTime([this] { return client().stats().links == 0; }));
}

TEST_F(ProofTest, PaddingThatWasNotAgreedOnEndsTheLink) {
  is_older_ = true;
  Link* link = Connect(at_client_, at_server_);
  ASSERT_NE(link, nullptr);
  link->Ping(8);
  ASSERT_TRUE(DoneInTime([this] { return !at_server_.reason().ok(); }));
  EXPECT_EQ(at_server_.reason().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(at_server_.reason().message().find("8 bytes, at most 0"), std::string::npos)
      << at_server_.reason();
}

class SharedMemoryProofTest : public LinksFixture {
 protected:
  Receiver at_client_;
  Receiver at_server_;
};

TEST_F(SharedMemoryProofTest, SharedMemoryIsProvenByTheHandshakeAlone) {
  Start({}, {});
  Link* link = Connect(at_client_, at_server_);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->stats().frames_sent, 0u);
}

}  // namespace proof_test
}  // namespace verbena::internal
