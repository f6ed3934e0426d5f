// A quiet peer that keeps credits to itself loses its link, and others get the credits that it
// borrowed. A busy one loses the credits.
//
// The peer is an honest one whose headers are falsified on their way into the send queue.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace stingy_peer_test {

// The false headers of one queue pair's SENDs.
struct Claims {
  uint32_t qpn = 0;
  bool returns_nothing = false;
  uint32_t credits_issued = 0;  // 0: what is true
};
Claims claims;
int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

int PostFalsified(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
  for (ibv_send_wr* wr = wrs; wr != nullptr && qp->qp_num == claims.qpn; wr = wr->next) {
    if (wr->opcode != IBV_WR_SEND || wr->num_sge == 0) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    char* bytes = reinterpret_cast<char*>(wr->sg_list[0].addr);
    SendHeader header;
    std::memcpy(&header, bytes, sizeof(header));
    if (header.is_compact()) continue;
    if (claims.returns_nothing) header.credits_returned = 0;
    if (claims.credits_issued != 0) header.credits_issued = claims.credits_issued;
    std::memcpy(bytes, &header, sizeof(header));
  }
  return real_post_send(qp, wrs, refused);
}

class StingyPeerTest : public LinksFixture {
 protected:
  static constexpr uint32_t kInitialCredits = 8;
  static constexpr uint32_t kPool = 16;

  void SetUp() override {
    LinkLimits limits;
    limits.max_links = 4;
    limits.initial_credits = kInitialCredits;
    limits.srq_depth = 4 * (kInitialCredits + kReserveCredits) + kRepostBatch + kPool;
    limits.eager_bytes = 1024;
    limits.ping_interval = ping_interval();
    Start(limits, limits);
    claims = {};
    auto& post_send = context().ops.post_send;
    real_post_send = post_send;
    post_send = PostFalsified;
  }
  void TearDown() override {
    claims = {};
    LinksFixture::TearDown();
    context().ops.post_send = real_post_send;
  }

  virtual Duration ping_interval() const { return std::chrono::milliseconds(4); }

  Receiver client_listener_;
  Receiver a_;
  Receiver b_;
  Receiver other_listener_;
};

// The first link borrows all there is, and then keeps it.
TEST_F(StingyPeerTest, APeerThatIgnoresRecallsLosesItsLinkAndOthersGetItsCredits) {
  Link* keeper = Connect(other_listener_, a_);
  Link* starving = Connect(client_listener_, b_);
  ASSERT_NE(keeper, nullptr);
  ASSERT_NE(starving, nullptr);
  claims = {.qpn = keeper->qpn(), .returns_nothing = true};
  Flood to_a(2000, 900);
  to_a.Run(*keeper);
  PollUntil([&] { return a_.received() == 2000; });
  ASSERT_EQ(server().stats().credits_borrowed, kPool) << "the first link was to take all";

  // Until its link closes: a million frames take far longer than the checks.
  Flood to_b(~uint32_t{0}, 900);
  to_b.Run(*starving);
  PollUntil([&] { return !a_.reason().ok() || b_.received() > 1000000; });
  EXPECT_TRUE(absl::IsResourceExhausted(a_.reason())) << a_.reason();
  EXPECT_TRUE(starving->open());
  EXPECT_TRUE(b_.reason().ok()) << b_.reason();
  PollUntil([&] { return server().stats().links == 1; });
  const uint32_t so_far = b_.received();
  PollUntil([&] { return b_.received() > so_far + 1000; });
  EXPECT_EQ(server().stats().credits_borrowed, kPool) << "the other link has them now";
}

class UncheckedStingyPeerTest : public StingyPeerTest {
 protected:
  // No check of the endpoint's makes a link send.
  Duration ping_interval() const override { return std::chrono::hours(1); }
};

// Each SEND of the first link spends a credit, and it is issued no other.
TEST_F(UncheckedStingyPeerTest, ABusyPeerThatIgnoresRecallsEndsAtItsFairShare) {
  Link* keeper = Connect(other_listener_, a_);
  ASSERT_NE(keeper, nullptr);
  Link& keeper_end = ***accepted();
  Link* starving = Connect(client_listener_, b_);
  ASSERT_NE(starving, nullptr);
  Link& starving_end = ***accepted();
  claims = {.qpn = keeper->qpn(), .returns_nothing = true};
  Flood to_a(~uint32_t{0}, 900);
  to_a.Run(*keeper);
  PollUntil([&] { return server().stats().credits_borrowed == kPool; });

  Flood to_b(~uint32_t{0}, 900);
  to_b.Run(*starving);
  EXPECT_TRUE(DoneInTime([&] { return starving_end.issued().surplus() == kPool / 2; }));
  EXPECT_EQ(keeper_end.issued().surplus(), kPool / 2);
  const uint32_t so_far = a_.received();
  EXPECT_TRUE(DoneInTime([&] { return a_.received() > so_far + 1000; })) << "it goes on";
  EXPECT_TRUE(a_.reason().ok()) << a_.reason();
}

TEST_F(UncheckedStingyPeerTest, APongThatFoundNoCreditLeavesWhenThePeerIssuesOne) {
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  Link& peer = ***accepted();
  claims = {.qpn = peer.qpn(), .credits_issued = kInitialCredits};
  for (uint32_t i = 0; i < kInitialCredits; ++i) {
    Flood(i + 1, 16, i).Run(*link);
    PollUntil([&] { return a_.received() == i + 1; });
  }
  const uint64_t before = peer.stats().frames_received;
  const uint64_t pings = link->stats().frames_received + 1;
  peer.Ping();
  PollUntil([&] { return link->stats().frames_received == pings; });
  for (int turn = 0; turn < 100; ++turn) executor().Poll();
  ASSERT_EQ(peer.stats().frames_received, before) << "the PONG was to find no credit";
  claims = {};
  Flood(1, 16).Run(peer);
  for (int turn = 0; turn < 10'000 && peer.stats().frames_received == before; ++turn) {
    executor().Poll();
  }
  EXPECT_EQ(peer.stats().frames_received, before + 1);
}

}  // namespace stingy_peer_test
}  // namespace verbena::internal
