// A link that nobody uses closes after its idle time, and a link in use stays open. With
// keep-alive, a link that waits for nothing notices a silent peer. Only the test moves the clock.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace idle_link_test {

using std::chrono::seconds;

// In use while the test says so; may ask its peer to close instead of closing.
class UsedSink final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override { return absl::OkStatus(); }
  void OnLinkDown(Link&, const absl::Status& reason) override { reason_ = reason; }
  bool ExpectsFrames() const override { return expects_frames; }
  bool InUse(const Link&) const override { return in_use; }
  bool OnIdle(Link&) override {
    ++idle_calls;
    return closes;
  }

  const absl::Status& reason() const { return reason_; }

  bool in_use = false;
  bool expects_frames = false;
  bool closes = true;
  int idle_calls = 0;

 private:
  absl::Status reason_;
};

class IdleLinkTest : public LinksFixture {
 protected:
  void SetUp() override {
    const LinkLimits client = {.idle_timeout = seconds(60)};
    const LinkLimits server = {.idle_timeout = Duration::zero()};
    Start(client, server);
    clock().Stop();
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
  }

  // In steps of a second, as the endpoint looks at its links.
  void Pass(int count) {
    for (int i = 0; i < count; ++i) {
      clock().Advance(seconds(1));
      for (int turn = 0; turn < 10; ++turn) executor().Poll();
    }
  }

  UsedSink client_listener_;
  UsedSink server_listener_;
  Link* link_ = nullptr;
};

TEST_F(IdleLinkTest, ALinkThatNobodyUsesClosesAfterItsTime) {
  Pass(55);
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
  Pass(10);
  ASSERT_TRUE(absl::IsCancelled(client_listener_.reason())) << client_listener_.reason();
  WaitUntilNoLinks();
}

TEST_F(IdleLinkTest, ALinkInUseStaysOpen) {
  client_listener_.in_use = true;
  Pass(200);
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
}

TEST_F(IdleLinkTest, AFrameBeginsTheTimeAnew) {
  for (int i = 0; i < 5; ++i) {
    Pass(50);
    Flood one(1, 32);
    one.Run(*link_);
  }
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
}

TEST_F(IdleLinkTest, PingsDoNotPutOffTheEndOfALinkThatNobodyUses) {
  server_listener_.expects_frames = true;
  Pass(50);
  EXPECT_GE(link_->stats().frames_received, 10u) << "PINGs";
  EXPECT_GE(link_->stats().frames_sent, 10u) << "PONGs";
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
  Pass(15);
  EXPECT_TRUE(absl::IsCancelled(client_listener_.reason())) << client_listener_.reason();
}

TEST_F(IdleLinkTest, ASinkThatAsksThePeerIsAskedAgainAfterTheTime) {
  client_listener_.closes = false;
  Pass(65);
  EXPECT_EQ(client_listener_.idle_calls, 1);
  Pass(50);
  EXPECT_EQ(client_listener_.idle_calls, 1);
  Pass(20);
  EXPECT_EQ(client_listener_.idle_calls, 2);
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
}

// The queue pair of a peer that has vanished: its SENDs go nowhere, but for the marker of its
// teardown.
uint32_t mute_qp = 0;
int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

int PostUnlessMute(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
  if (wrs->num_sge != 0 && qp->qp_num == mute_qp) return 0;
  return real_post_send(qp, wrs, refused);
}

class KeepAliveTest : public IdleLinkTest {
 protected:
  void SetUp() override {
    const LinkLimits client = {.idle_timeout = seconds(600), .keep_alive_interval = seconds(20)};
    Start(client, {.idle_timeout = Duration::zero()});
    clock().Stop();
    real_post_send = std::exchange(context().ops.post_send, PostUnlessMute);
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
  }
  void TearDown() override {
    mute_qp = 0;
    IdleLinkTest::TearDown();
    context().ops.post_send = real_post_send;
  }
};

TEST_F(KeepAliveTest, AnIdleLinkAsksNowAndThenAndItsPeerAnswers) {
  Pass(15);
  const uint64_t before = link_->stats().frames_received;
  Pass(300);
  // Each time a check or two pass before the PING leaves.
  const uint64_t pongs = link_->stats().frames_received - before;
  EXPECT_GE(pongs, 10u);
  EXPECT_LE(pongs, 16u);
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
}

TEST_F(KeepAliveTest, KeepsNoIdleLinkOpen) {
  Pass(610);
  EXPECT_TRUE(absl::IsCancelled(client_listener_.reason())) << client_listener_.reason();
}

TEST_F(KeepAliveTest, APeerThatVanishedLosesTheLinkThoughNobodyWaitsForIt) {
  Pass(5);
  mute_qp = (**accepted())->qpn();
  Pass(40);
  EXPECT_TRUE(absl::IsUnavailable(client_listener_.reason())) << client_listener_.reason();
}

}  // namespace idle_link_test
}  // namespace verbena::internal
