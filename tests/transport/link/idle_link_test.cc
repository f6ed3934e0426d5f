// A link that nobody uses closes after its idle time, and a link in use stays open. Only the test
// moves the clock.

#include <gtest/gtest.h>

#include <chrono>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace {

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
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
  }

  // In steps of a second, as the endpoint looks at its links.
  void Pass(int count) {
    for (int i = 0; i < count; ++i) {
      clock().AdvanceBy(seconds(1));
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
  EXPECT_TRUE(absl::IsCancelled(client_listener_.reason())) << client_listener_.reason();
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

}  // namespace
}  // namespace verbena::internal
