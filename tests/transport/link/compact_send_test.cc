// A SEND of one small frame leaves in the compact form, and no counter is lost for it.

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace compact_send_test {

class CompactSendTest : public LinksFixture {
 protected:
  static constexpr uint32_t kInitialCredits = 32;

  void SetUp() override {
    LinkLimits limits;
    limits.max_links = 2;
    limits.initial_credits = kInitialCredits;
    limits.srq_depth = 2 * (kInitialCredits + kReserveCredits) + kRepostBatch + 64;
    limits.eager_bytes = 1024;
    Start(limits, limits);
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
    PollUntil([&] { return !executor().Poll(); });
  }
  Link& server_link() { return ***accepted(); }

  // Sends `count` frames of `bytes` in one turn, and returns how many bytes they took.
  uint64_t Send(uint32_t count, size_t bytes) {
    const uint64_t before = link_->stats().bytes_sent;
    Append(count, bytes);
    PollUntil([&] { return server_listener_.received() == sent_; });
    return link_->stats().bytes_sent - before;
  }
  void Append(uint32_t count, size_t bytes) {
    Flood flood(sent_ + count, bytes, sent_);
    flood.Run(*link_);
    sent_ += count;
    ASSERT_EQ(flood.sent(), sent_);
  }

  Receiver client_listener_;
  Receiver server_listener_;
  Link* link_ = nullptr;
  uint32_t sent_ = 0;
};

TEST_F(CompactSendTest, OneFrameTakesTwelveBytesBesideItsBody) {
  EXPECT_EQ(Send(1, 32), 12u + 32);
  EXPECT_EQ(Send(1, 33), 12u + 33);
  EXPECT_EQ(Send(1, 0), 12u);
}

TEST_F(CompactSendTest, TwoFramesOfATurnShareTheFullForm) {
  EXPECT_EQ(Send(2, 32), sizeof(SendHeader) + 2 * FrameBytes(32));
}

// Credits are counted modulo 2^16 here, and modulo 2^32 in full headers.
TEST_F(CompactSendTest, CreditsGoOnBeyondSixteenBits) {
  Flood flood(70'000, 8);
  flood.Run(*link_);
  PollUntil([&] { return server_listener_.received() == 70'000; });
  EXPECT_TRUE(link_->open());
  EXPECT_GT(link_->stats().sends, 0u);
}

TEST_F(CompactSendTest, ReturnedCreditsTravelThoughEachSendHasOneFrame) {
  Flood flood(2'000, 900);
  flood.Run(*link_);
  PollUntil([&] { return server_listener_.received() == 2'000; });
  sent_ = 2'000;
  PollUntil([&] { return !executor().Poll(); });
  ASSERT_GT(server_link().issued().surplus(), 0u) << "the window was to grow";
  const uint64_t credit_sends = link_->stats().credit_sends;
  server_link().Recall(server_link().issued().surplus());
  for (int turn = 0; turn < 200 && server_link().issued().surplus() > 0; ++turn) {
    Append(1, 32);
    executor().Poll();
  }
  EXPECT_EQ(server_link().issued().surplus(), 0u);
  EXPECT_EQ(link_->stats().credit_sends, credit_sends);
  EXPECT_TRUE(link_->open()) << client_listener_.reason();
  // A counter is told once.
  PollUntil([&] { return server_listener_.received() == sent_; });
  EXPECT_EQ(Send(1, 32), 12u + 32);
}

}  // namespace compact_send_test
}  // namespace verbena::internal
