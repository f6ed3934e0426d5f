// Receives that a device drops with a destroyed queue pair come back, or their queue is replaced.
// Links in use are not harmed.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/scripted_stream.h"
#include "tests/transport/device/fake_device.h"
#include "tests/transport/device/held_device.h"
#include "tests/transport/link/links_fixture.h"
#include "tests/transport/link/swallowing_device.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace swallowed_receives_test {

using std::chrono::seconds;

constexpr int kChurns = 1000;
constexpr uint32_t kDepth = 512;

// May have room for no more receives than are asked for, say of no queue pair that it is gone, or
// hold up those that are to receive.
class NarrowDevice final : public SwallowingDevice {
 public:
  explicit NarrowDevice(Device& device) : SwallowingDevice(device), gate(device) {}

  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& wanted) override {
    ++srqs_made;
    return SwallowingDevice::CreateSrq(pd, wanted);
  }
  bool Quiesced(QpIdentity qp) override {
    return !keeps_queue_pairs && SwallowingDevice::Quiesced(qp);
  }

  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    return gate.ModifyQp(qp, attributes, mask);
  }

  HeldDevice gate;
  std::atomic<int> srqs_made = 0;
  bool keeps_queue_pairs = false;
};

class SwallowedReceivesTest : public LinksFixture {
 protected:
  void Begin(bool tells_of_last, bool has_spares = true) {
    tells_of_last_ = tells_of_last;
    has_spares_ = has_spares;
    LinkLimits limits;
    // The event that does not come is not waited for.
    if (!tells_of_last) limits.teardown_timeout = std::chrono::milliseconds(1);
    if (tells_of_last) limits.teardown_timeout = std::chrono::seconds(10);
    limits.max_links = 8;
    limits.srq_depth = kDepth;
    Start(limits, limits);
  }
  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto swallowing = std::make_unique<NarrowDevice>(device);
    if (!tells_of_last_) swallowing->can.last_wqe_event = false;
    if (!has_spares_) swallowing->limits.max_srq_wr = kDepth;
    swallowing_ = swallowing.get();
    return swallowing;
  }
  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    if (!ready_waits_) return stream;
    // The client's second message is its Ready.
    const ScriptedStream::Step wait = [this](MessageStream&, int message) -> Task<absl::Status> {
      if (message == 2) (void)co_await go_.Wait();
      co_return absl::OkStatus();
    };
    return std::make_unique<ScriptedStream>(std::move(stream),
                                            ScriptedStream::Script{.before_send = wait});
  }
  void Until(const std::function<bool()>& done, int line = __builtin_LINE()) {
    SCOPED_TRACE(line);
    const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(30);
    PollUntil(done, [&] {
      ASSERT_LT(Clock::Real().Now(), limit)
          << server().stats().receives_posted << " receives, " << server().stats().receives_lost
          << " lost, " << swallowing_->swallowed() << " swallowed; links " << client().stats().links
          << " and " << server().stats().links;
    });
  }
  // Links are refused while queues are replaced.
  Link* ConnectOrRetry(Receiver& client_listener, Receiver& server_listener) {
    absl::StatusOr<Link*> link = absl::UnknownError("");
    Until([&] {
      link = TryConnect(client_listener, server_listener);
      return link.ok();
    });
    Until([&] { return accepted().has_value(); });
    return *link;
  }
  // A link on which the server receives `heard` frames; then it loses `lost` more, with the link.
  void Churn(uint32_t heard, uint32_t lost) {
    Receiver client_listener, server_listener;
    Link* link = ConnectOrRetry(client_listener, server_listener);
    Link* accepted_link = **accepted();
    Flood first(heard, 32);
    first.Run(*link);
    Until([&] { return server_listener.received() == heard; });
    const uint32_t qpn = accepted_link->qpn();
    if (lost > 0) {
      swallowing_->HoldReceivesOf(qpn);
      // Frames of one turn share a SEND; each of these fills one.
      Flood second(heard + lost, 3500, heard);
      second.Run(*link);
      Until([&] { return swallowing_->held(qpn) >= lost; });
    }
    if (HasFatalFailure()) return;
    accepted_link->Close(absl::CancelledError("churn"));
    // The listeners go, so both ends must be closed, also if the other links were closed with them.
    Until([&] { return !client_listener.reason().ok() && !server_listener.reason().ok(); });
    Until([&] { return client().stats().links + server().stats().links <= others_; });
  }
  // Far more frames than the server has receives.
  void ExpectFlow(Link* link, Receiver& server_listener) {
    const uint32_t before = server_listener.received();
    Flood flood(before + 3000, 3500, before);
    flood.Run(*link);
    Until([&] { return server_listener.received() == before + 3000 || !link->open(); });
    ASSERT_TRUE(link->open());
  }
  // As many liveness checks of both endpoints.
  void PassChecks(int count) {
    for (int i = 0; i < count; ++i) {
      clock().Advance(LinkLimits().ping_interval / 2);
      for (int turn = 0; turn < 100; ++turn) executor().Poll();
    }
  }

  // The listeners of the last link.
  Receiver client_listener_, server_listener_;
  bool tells_of_last_ = true;
  bool has_spares_ = true;
  uint32_t others_ = 0;
  NarrowDevice* swallowing_ = nullptr;
  // A handshake that stops at its Ready.
  bool ready_waits_ = false;
  Event go_;
  std::optional<absl::StatusOr<Link*>> late_;
  Receiver other_client_listener_, other_server_listener_;
};

// Nothing is left to swallow when a queue pair is destroyed: its end is awaited.
TEST_F(SwallowedReceivesTest, ADeviceThatTellsOfTheLastReceiveSwallowsNone) {
  Begin(/*tells_of_last=*/true);
  for (int i = 0; i < kChurns && !HasFatalFailure(); ++i) Churn(4, 0);
  EXPECT_EQ(swallowing_->swallowed(), 0u);
  EXPECT_EQ(server().stats().receives_lost, 0u);
}

TEST_F(SwallowedReceivesTest, ReceivesThatADeviceDropsWithAQueuePairComeBack) {
  Begin(/*tells_of_last=*/false);
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  others_ = 2;
  for (int i = 0; i < kChurns && !HasFatalFailure(); ++i) Churn(1, 3);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_GE(swallowing_->swallowed(), 3u * kChurns);
  ASSERT_TRUE(link->open()) << "a quiet link beside them stays";
  ExpectFlow(link, server_listener_);
  const uint64_t found = server().stats().receives_lost;
  EXPECT_LE(found, swallowing_->swallowed());
  EXPECT_GE(found + 256, swallowing_->swallowed());
  EXPECT_EQ(client().stats().receives_lost, 0u);
}

// Nothing is ever received but what is swallowed, so nothing shows what is missing.
TEST_F(SwallowedReceivesTest, QueuesThatMayLackReceivesAreReplacedWhileNoLinkUsesThem) {
  Begin(/*tells_of_last=*/false);
  for (int i = 0; i < kChurns && !HasFatalFailure(); ++i) {
    clock().Advance(seconds(1));
    Churn(0, 4);
  }
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_GT(swallowing_->srqs_made, 2);
  Link* link = ConnectOrRetry(client_listener_, server_listener_);
  ExpectFlow(link, server_listener_);
}

TEST_F(SwallowedReceivesTest, WithoutSparesLinksStayWhileTheirPeersMayHaveWhatIsMissing) {
  Begin(/*tells_of_last=*/false, /*has_spares=*/false);
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  // A quiet link proves nothing before it has answered a PING.
  Link* quiet = Connect(other_client_listener_, other_server_listener_);
  ASSERT_NE(quiet, nullptr);
  others_ = 4;
  for (int i = 0; i < 20 && !HasFatalFailure(); ++i) {
    Churn(1, 3);
    ASSERT_TRUE(link->open());
    ExpectFlow(link, server_listener_);
    ASSERT_TRUE(quiet->open());
  }
  EXPECT_GT(server().stats().receives_lost, 0u);
  EXPECT_EQ(swallowing_->srqs_made, 2);
}

// Such a link may have one of the missing receives, but cannot be sent the PING that would show it.
TEST_F(SwallowedReceivesTest, ALinkWhoseHandshakeTakesLongIsAskedForItsProofWhenItIsDone) {
  Begin(/*tells_of_last=*/false);
  // The checks leave the handshake little of its time.
  clock().Stop();
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  others_ = 2;
  Churn(1, 3);
  ready_waits_ = true;
  BeginConnect(other_client_listener_, other_server_listener_, late_);
  Until([&] { return server().stats().links_opened == 3; });
  ExpectFlow(link, server_listener_);
  PassChecks(8);
  EXPECT_EQ(server().stats().receives_lost, 0u);
  go_.Set();
  Until([&] { return late_.has_value() && accepted().has_value(); });
  ASSERT_TRUE(late_->ok()) << late_->status();
  ASSERT_TRUE(accepted()->ok()) << accepted()->status();
  PassChecks(2);
  Until([&] { return server().stats().receives_lost > 0; });
  EXPECT_TRUE((**late_)->open());
  EXPECT_TRUE((**accepted())->open());
  EXPECT_TRUE(link->open());
}

// While a control thread takes its queue pair to RTR, which may take a second.
TEST_F(SwallowedReceivesTest, ALinkThatIsNotOpenYetOwesNoProof) {
  Begin(/*tells_of_last=*/false);
  // The checks leave the handshake little of its time.
  clock().Stop();
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  others_ = 2;
  Churn(1, 3);
  swallowing_->gate.Hold(HeldDevice::Verb::kConnect);
  BeginConnect(other_client_listener_, other_server_listener_, late_);
  Until([&] { return swallowing_->gate.waiting(HeldDevice::Verb::kConnect) == 1; });
  ExpectFlow(link, server_listener_);
  PassChecks(8);
  EXPECT_EQ(server().stats().receives_lost, 0u) << "its queue pair may have one of them";
  swallowing_->gate.Release(HeldDevice::Verb::kConnect);
  Until([&] { return late_.has_value() && accepted().has_value(); });
  ASSERT_TRUE(late_->ok()) << late_->status();
  ASSERT_TRUE(accepted()->ok()) << accepted()->status();
  PassChecks(2);
  Until([&] { return server().stats().receives_lost > 0; });
  EXPECT_TRUE((**late_)->open());
  EXPECT_TRUE(link->open());
}

TEST_F(SwallowedReceivesTest, LinksThatEndInSilenceReplaceQueuesOnceInTenSecondsAtMost) {
  Begin(/*tells_of_last=*/false);
  clock().Stop();
  // Client and server replace their queues in the same rounds: both are in the same doubt.
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 100 && !HasFatalFailure(); ++i) Churn(0, 0);
    EXPECT_LE(swallowing_->srqs_made, 2 + 2 * round);
    EXPECT_GE(swallowing_->srqs_made, 2 + round);
    clock().Advance(seconds(10));
  }
}

TEST_F(SwallowedReceivesTest, QueuePairsThatNeverCameToReceiveLeaveNoDoubt) {
  Begin(/*tells_of_last=*/false);
  RunToEnd(server().Shutdown());
  for (int i = 0; i < 150; ++i) {
    ASSERT_FALSE(TryConnect(client_listener_, server_listener_).ok());
    Until([&] { return client().stats().links == 0; });
  }
  EXPECT_EQ(swallowing_->srqs_made, 2);
}

TEST_F(SwallowedReceivesTest, ReceivesOfQueuePairsThatAreNotDestroyedAreNotUsedAgain) {
  Begin(/*tells_of_last=*/false);
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  others_ = 2;
  swallowing_->keeps_queue_pairs = true;
  for (int i = 0; i < 20 && !HasFatalFailure(); ++i) Churn(1, 3);
  ExpectFlow(link, server_listener_);
  PassChecks(2);
  EXPECT_TRUE(link->open());
  EXPECT_EQ(server().stats().receives_lost, 0u);
}

// Each leaves behind what its queue pair may have for ever, until more is gone than is spare.
TEST_F(SwallowedReceivesTest, QueuesThatLackReceivesOfKeptQueuePairsAreReplaced) {
  Begin(/*tells_of_last=*/false);
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  others_ = 2;
  swallowing_->keeps_queue_pairs = true;
  for (int i = 0; i < 200 && swallowing_->srqs_made == 2 && !HasFatalFailure(); ++i) {
    Churn(1, 3);
    const uint32_t before = server_listener_.received();
    const auto lost = [&] {
      return !client_listener_.reason().ok() || !server_listener_.reason().ok();
    };
    if (lost()) break;
    Flood flood(before + 1000, 3500, before);
    flood.Run(*link);
    Until([&] { return server_listener_.received() == before + 1000 || lost(); });
  }
  ASSERT_FALSE(HasFatalFailure());
  Until([&] { return client().stats().links + server().stats().links == 0; });
  EXPECT_TRUE(absl::IsUnavailable(server_listener_.reason())) << server_listener_.reason();
  EXPECT_EQ(server().stats().receives_lost, 0u) << "none of them is used again";
  swallowing_->keeps_queue_pairs = false;
  ExpectFlow(ConnectOrRetry(other_client_listener_, other_server_listener_),
             other_server_listener_);
  EXPECT_GT(swallowing_->srqs_made, 2);
}

// As rxe and mlx5 say of themselves.
TEST(SpareReceivesTest, ADeviceThatMayDropReceivesKeepsRoomForSparesBesideItsLinks) {
  class Hardware final : public FakeDevice {
   public:
    DeviceKind kind() const override { return DeviceKind::kRdma; }
  };
  Hardware device;
  device.can.srq = true;
  device.limits.max_qp_wr = 1024;
  device.limits.max_srq_wr = 32767;
  for (const int max_cqe : {32767, 1 << 22}) {
    device.limits.max_cqe = max_cqe;
    const absl::StatusOr<LinkLimits> limits = DeriveLimits({.srq_depth = 32768}, device);
    ASSERT_TRUE(limits.ok()) << limits.status();
    EXPECT_LE(limits->srq_depth + kSpareReceives, 32767u);
    EXPECT_LE(CompletionQueueEntries(*limits) + kSpareReceives, static_cast<uint32_t>(max_cqe));
  }
}

}  // namespace swallowed_receives_test
}  // namespace verbena::internal
