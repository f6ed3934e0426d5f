// A peer that does not acknowledge a SEND in time loses its link, and one that does keeps it. Only
// the test moves the clock.
//
// The tests hold back the sender's WRs and post them later. To the sender this looks like a peer
// that posts a receive just in time for each retry.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tests/transport/link/kept_sends.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace unacknowledged_send_test {

using std::chrono::seconds;

class UnacknowledgedSendTest : public LinksFixture {
 protected:
  static constexpr size_t kBody = 9000;  // not inline, and a SEND of its own
  static constexpr uint32_t kFrames = 60;

  void SetUp() override {
    const LinkLimits limits = {.max_links = 2,
                               .srq_depth = 2048,
                               .eager_bytes = 16384,
                               .initial_credits = 512,
                               .ping_interval = seconds(2)};
    Start(limits, limits);
    clock().Stop();
    ASSERT_LT(client().supplies().max_inline_bytes(), kBody);
    sends_.emplace(context());
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
  }
  void TearDown() override {
    sends_->KeepThoseOf(0);
    LinksFixture::TearDown();
    sends_.reset();
  }

  // In steps of a second, as the endpoint looks at its links.
  void Pass(int count) {
    for (int i = 0; i < count; ++i) {
      clock().Advance(seconds(1));
      for (int turn = 0; turn < 10; ++turn) executor().Poll();
    }
  }

  // One frame of a SEND of its own, copied inline.
  void SendSmall() {
    const auto number = static_cast<uint32_t>(small_.size());
    small_.emplace_back(number + 1, 16, number).Run(*link_);
    executor().Poll();
  }
  // Until one waits for a slot.
  void FillSendQueue() {
    while (link_->stats().slot_waits == 0) {
      ASSERT_LT(small_.size(), 2 * client().limits().send_queue_depth);
      SendSmall();
    }
    ASSERT_EQ(link_->stats().credit_waits, 0u);
  }

  Receiver client_listener_;
  Receiver server_listener_;
  Link* link_ = nullptr;
  std::optional<KeptSends> sends_;
  std::deque<Flood> small_;
};

TEST_F(UnacknowledgedSendTest, APeerThatTakesASendNowAndThenLosesItsLink) {
  sends_->KeepThoseOf(link_->qpn());
  Flood flood(kFrames, kBody);
  flood.Run(*link_);
  Pass(1);
  ASSERT_EQ(sends_->size(), kFrames);
  while (sends_->size() > 0 && client_listener_.reason().ok()) {
    sends_->Post(1);
    Pass(1);
  }
  EXPECT_TRUE(absl::IsUnavailable(client_listener_.reason())) << client_listener_.reason();
  EXPECT_NE(client_listener_.reason().message().find("has not taken a SEND"), std::string::npos)
      << client_listener_.reason();
  EXPECT_GT(sends_->size(), kFrames - 2 * kMaxUnacknowledgedChecks);
}

TEST_F(UnacknowledgedSendTest, APeerThatTakesAllSendsInTimeKeepsItsLink) {
  sends_->KeepThoseOf(link_->qpn());
  for (uint32_t round = 0; round < 6; ++round) {
    Flood flood(10 * (round + 1), kBody, 10 * round);
    flood.Run(*link_);
    Pass(5);
    ASSERT_EQ(sends_->size(), 10u);
    sends_->Post(10);
    Pass(1);
  }
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
  EXPECT_EQ(server_listener_.received(), 60u);
}

// No PING can leave, and no other link is to blame for that.
TEST_F(UnacknowledgedSendTest, ASilentPeerIsFoundDeadThoughInlineSendsFillTheSendQueue) {
  sends_->KeepThoseOf(link_->qpn());
  client_listener_.set_expects_frames();
  FillSendQueue();
  Pass(kMaxSilentChecks + 4);
  EXPECT_NE(client_listener_.reason().message().find("has not answered a PING"), std::string::npos)
      << client_listener_.reason();
}

TEST_F(UnacknowledgedSendTest, APeerThatTakesNothingOfAFullSendQueueLosesItsLink) {
  sends_->KeepThoseOf(link_->qpn());
  FillSendQueue();
  Pass(kMaxUnacknowledgedChecks);
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
  Pass(2);
  EXPECT_NE(client_listener_.reason().message().find("has not taken a SEND"), std::string::npos)
      << client_listener_.reason();
}

TEST_F(UnacknowledgedSendTest, APeerThatKeepsTakingSendsOfAFullSendQueueKeepsItsLink) {
  sends_->KeepThoseOf(link_->qpn());
  FillSendQueue();
  for (uint32_t round = 0; round < 6; ++round) {
    Pass(kMaxUnacknowledgedChecks / 2);
    sends_->Post(kSignalInterval);
    for (uint32_t i = 0; i < 2 * kSignalInterval; ++i) SendSmall();
  }
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
}

// Its last SENDs are unsignalled, so that no completion tells that they have ended.
TEST_F(UnacknowledgedSendTest, ALinkThatFallsQuietStaysOpen) {
  Flood large(1, kBody);
  large.Run(*link_);
  PollUntil([&] { return server_listener_.received() == 1; });
  Flood small(2, 16, 1);
  small.Run(*link_);
  Pass(60);
  EXPECT_EQ(server_listener_.received(), 2u);
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
}

}  // namespace unacknowledged_send_test
}  // namespace verbena::internal
