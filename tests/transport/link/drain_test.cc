// A completion queue that is drained around a link's end is drained within bounds, however fast
// peers of other links send meanwhile.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/stats.h"

namespace verbena::internal {
namespace drain_test {

// The queue pair of that number, as soon as it sends.
uint32_t seen_qpn = 0;
ibv_qp* seen_qp = nullptr;
int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

int PostAndSee(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
  if (qp->qp_num == seen_qpn) seen_qp = qp;
  return real_post_send(qp, wrs, refused);
}

// Answers each frame, and lets the peer handle what it was sent, as if the peer had a faster core.
class AnswersToAFastPeer final : public LinkListener {
 public:
  absl::Status OnFrame(Link& link, const FrameHeader& frame, const char*) override {
    FrameHeader answer;
    answer.kind = FrameKind::kResponse;
    answer.call_generation = frame.call_generation;
    if (link.Append(answer, 0) == nullptr) return absl::ResourceExhaustedError("an answer waits");
    ++answered_;
    if (answered_ < limit_) link.endpoint().executor().DrainCq(seen_qp->recv_cq);
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status& reason) override { reason_ = reason; }
  bool ExpectsFrames() const override { return false; }

  // The peer goes on after each answer, until so many more have been given.
  void GoOnFor(uint32_t answers) { limit_ = answered_ + answers; }
  uint32_t answered() const { return answered_; }
  const absl::Status& reason() const { return reason_; }

 private:
  uint32_t answered_ = 0;
  uint32_t limit_ = 0;
  absl::Status reason_;
};

// The side with calls in flight: its frames leave in small groups.
class Caller final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override { return absl::OkStatus(); }
  void OnLinkDown(Link&, const absl::Status& reason) override { reason_ = reason; }
  bool ExpectsFrames() const override { return false; }
  uint32_t calls_in_flight() const override { return 2 * kMinEarlyFrames; }

  const absl::Status& reason() const { return reason_; }

 private:
  absl::Status reason_;
};

class DrainTest : public LinksFixture {
 protected:
  static constexpr uint32_t kReceives = 512;

  void SetUp() override {
    LinkLimits limits;
    limits.max_links = 2;
    limits.initial_credits = 128;
    limits.srq_depth = kReceives;
    limits.eager_bytes = 1024;
    Start(limits, limits);
    real_post_send = std::exchange(context().ops.post_send, PostAndSee);
  }
  void TearDown() override {
    answering_.GoOnFor(0);
    seen_qpn = 0;
    seen_qp = nullptr;
    LinksFixture::TearDown();
    context().ops.post_send = real_post_send;
  }

  Caller flooding_;
  Receiver quiet_;
  AnswersToAFastPeer answering_;
  Receiver server_listener_;
};

TEST_F(DrainTest, APeerThatSendsWheneverItIsAnsweredDoesNotKeepADrainGoing) {
  Link* closing = Connect(quiet_, server_listener_);
  ASSERT_NE(closing, nullptr);
  Link* link = Connect(flooding_, answering_);
  ASSERT_NE(link, nullptr);
  seen_qpn = link->qpn();
  constexpr uint32_t kMany = 20 * kReceives;
  Flood flood(~uint32_t{0}, 900);
  flood.Run(*link);
  ASSERT_NE(seen_qp, nullptr) << "a group leaves at once";
  answering_.GoOnFor(kMany);
  closing->Close(absl::CancelledError("the client has no more use for it"));
  uint32_t most = 0;
  PollUntil([&] { return server().stats().links == 1 || answering_.answered() >= kMany; },
            [&, before = uint32_t{0}]() mutable {
              most = std::max(most,
                              answering_.answered() - std::exchange(before, answering_.answered()));
            });
  EXPECT_EQ(flooding_.reason(), absl::OkStatus());
  EXPECT_EQ(answering_.reason(), absl::OkStatus());
  EXPECT_GT(answering_.answered(), kReceives) << "it was to send all the while";
  // One turn's poll and its drain.
  EXPECT_LE(most, 2 * kReceives);
}

}  // namespace drain_test
}  // namespace verbena::internal
