// A peer's time to answer a RECALL of credits begins when the RECALL has left. Frames that wait do
// not hold the RECALL up. A peer that lets no RECALL leave loses its link all the same. Only the
// test moves the clock.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tests/transport/link/kept_sends.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace slow_peer_test {

using std::chrono::seconds;

class SlowPeerTest : public LinksFixture {
 protected:
  static constexpr uint32_t kInitialCredits = 8;
  static constexpr uint32_t kPool = 16;

  void SetUp() override {
    LinkLimits limits;
    limits.max_links = 4;
    limits.initial_credits = kInitialCredits;
    limits.srq_depth = 4 * (kInitialCredits + kReserveCredits) + kRepostBatch + kPool;
    limits.eager_bytes = 1024;
    limits.ping_interval = seconds(2);
    Start(limits, limits);
    clock().Stop();
    sends_.emplace(context());
    slow_ = Connect(slow_client_, slow_server_);
    ASSERT_NE(slow_, nullptr);
    slow_end_ = **accepted();
    starving_ = Connect(other_client_, other_server_);
    ASSERT_NE(starving_, nullptr);
  }
  void TearDown() override {
    sends_->KeepThoseOf(0);
    LinksFixture::TearDown();
    sends_.reset();
  }

  // In steps of a second, as the endpoint looks at its links.
  void Pass(uint32_t checks) {
    for (uint32_t i = 0; i < checks; ++i) {
      clock().Advance(seconds(1));
      for (int turn = 0; turn < 10; ++turn) executor().Poll();
    }
  }

  // The slow peer borrows all credits, and then lets nothing out. The server's frames, each of
  // which fills a SEND, wait for credits from the slow peer, and another link wants the credits
  // that the slow peer borrowed.
  void StarveBesideASlowPeer() {
    Flood all(2000, 900);
    all.Run(*slow_);
    PollUntil([&] { return slow_server_.received() == 2000; });
    ASSERT_EQ(server().stats().credits_borrowed, kPool) << "the first link was to take all";
    sends_->KeepThoseOf(slow_->qpn());
    to_slow_.emplace(~uint32_t{0}, slow_end_->max_body_bytes());
    to_slow_->Run(*slow_end_);
    PollUntil([&] { return slow_end_->send_credits() == 0; });
    to_other_.Run(*starving_);
    for (int turn = 0; turn < 100; ++turn) executor().Poll();
    ASSERT_EQ(slow_end_->stats().recalls, 0u) << "it has given no credit for one";
  }

  Receiver slow_client_;
  Receiver slow_server_;
  Receiver other_client_;
  Receiver other_server_;
  Link* slow_ = nullptr;
  Link* slow_end_ = nullptr;  // the server's
  Link* starving_ = nullptr;
  std::optional<Flood> to_slow_;
  Flood to_other_{~uint32_t{0}, 900};
  std::optional<KeptSends> sends_;
};

TEST_F(SlowPeerTest, ARecallThatHasNotLeftDoesNotCountAsUnanswered) {
  StarveBesideASlowPeer();
  Pass(kMaxUnansweredRecalls + 2);
  ASSERT_EQ(slow_server_.reason(), absl::OkStatus());
  sends_->Post(sends_->size());
  sends_->KeepThoseOf(0);
  for (int turn = 0; turn < 1000; ++turn) executor().Poll();
  EXPECT_GT(slow_end_->stats().recalls, 0u) << "frames that wait take all credits";
  Pass(2 * kMaxUnsentRecalls);
  EXPECT_EQ(slow_server_.reason(), absl::OkStatus());
  EXPECT_TRUE(starving_->open());
}

TEST_F(SlowPeerTest, APeerThatGivesNoCreditForARecallLosesItsLink) {
  StarveBesideASlowPeer();
  uint64_t recalls = 0;
  for (uint32_t i = 0; i < kMaxUnsentRecalls + 2; ++i) {
    Pass(1);
    // The link may be gone soon after it is lost.
    if (slow_server_.reason().ok()) recalls = slow_end_->stats().recalls;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(slow_server_.reason())) << slow_server_.reason();
  EXPECT_EQ(recalls, 0u);
  EXPECT_TRUE(starving_->open());
}

}  // namespace slow_peer_test
}  // namespace verbena::internal
