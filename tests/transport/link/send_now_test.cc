// An answer to a lone frame leaves inside its handler; answers to several share a SEND or a
// doorbell. No link closes inside its handler, and no credit is issued before its receive is
// posted.

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/stats.h"

namespace verbena::internal {
namespace send_now_test {

int Refuse(ibv_qp*, ibv_send_wr* wr, ibv_send_wr** refused) {
  *refused = wr;
  return ENOMEM;
}

// Answers each frame with its own slot and first byte, and says so to the link.
class Echo final : public LinkListener {
 public:
  explicit Echo(uint32_t initial_credits) : initial_credits_(initial_credits) {}

  absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) override {
    FrameHeader answer;
    answer.kind = FrameKind::kResponse;
    answer.call_generation = frame.call_generation;
    char* to = link.Append(answer, 1);
    EXPECT_NE(to, nullptr);
    if (to == nullptr) return absl::ResourceExhaustedError("no room for an answer");
    *to = *body;
    const uint64_t before = link.stats().doorbells;
    if (refusing_ != nullptr) {
      const auto real = std::exchange(refusing_->ops.post_send, Refuse);
      link.SendNowIfAlone();
      std::exchange(refusing_, nullptr)->ops.post_send = real;
      EXPECT_TRUE(link.open());
      EXPECT_TRUE(reason_.ok()) << reason_;
    } else {
      link.SendNowIfAlone();
    }
    const bool at_once = link.stats().doorbells != before;
    at_once_ += at_once ? 1 : 0;
    // The SEND carried the whole window, each credit with a receive behind it.
    const EndpointStats endpoint = link.endpoint().stats();
    if (at_once) {
      EXPECT_GE(endpoint.receives_posted, initial_credits_ + endpoint.credits_borrowed);
    }
    ++answered_;
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status& reason) override { reason_ = reason; }
  bool ExpectsFrames() const override { return false; }

  // The next answer that is posted inside OnFrame() is refused.
  void RefuseNext(ibv_context& context) { refusing_ = &context; }

  uint32_t answered() const { return answered_; }
  // Doorbells inside OnFrame().
  uint64_t at_once() const { return at_once_; }
  const absl::Status& reason() const { return reason_; }

 private:
  const uint32_t initial_credits_;
  ibv_context* refusing_ = nullptr;
  uint32_t answered_ = 0;
  uint64_t at_once_ = 0;
  absl::Status reason_;
};

class SendNowTest : public LinksFixture {
 protected:
  // The first poll of a flood finds so many, and the next the last one alone: it has no credit
  // left.
  static constexpr uint32_t kInitialCredits = 14;

  // The client's end; its server can issue `pool` credits beyond the initial ones.
  Link* Connected(uint32_t pool = 0) {
    LinkLimits client_limits;
    client_limits.eager_bytes = 1024;
    LinkLimits server_limits = client_limits;
    server_limits.max_links = 1;
    server_limits.initial_credits = kInitialCredits;
    server_limits.srq_depth = kInitialCredits + kReserveCredits + kRepostBatch + pool;
    Start(client_limits, server_limits);
    return Connect(client_listener_, echo_);
  }
  const LinkStats& ServerStats() const { return (**accepted())->stats(); }

  Receiver client_listener_;
  Echo echo_{kInitialCredits};
};

TEST_F(SendNowTest, TheAnswerToALoneFrameLeavesInsideItsHandler) {
  Link* link = Connected();
  ASSERT_NE(link, nullptr);
  PollUntil([&] { return !executor().Poll(); });
  // Fewer than those after which a completion of the answers' SENDs joins a frame.
  for (uint32_t i = 0; i < 10; ++i) {
    FrameHeader frame;
    frame.call_generation = i;
    *link->Append(frame, 1) = static_cast<char>(i);
    PollUntil([&] { return client_listener_.received() == i + 1; });
  }
  EXPECT_EQ(echo_.at_once(), 10u);
  EXPECT_EQ(ServerStats().sends, ServerStats().doorbells);
}

TEST_F(SendNowTest, AnswersToFramesOfOneSendShareOne) {
  Link* link = Connected();
  ASSERT_NE(link, nullptr);
  PollUntil([&] { return !executor().Poll(); });
  const uint64_t before = ServerStats().sends;
  Flood flood(10, 8);
  flood.Run(*link);
  PollUntil([&] { return client_listener_.received() == 10; });
  EXPECT_EQ(echo_.at_once(), 0u);
  EXPECT_EQ(ServerStats().sends - before, 1u);
}

TEST_F(SendNowTest, AnswersToSendsOfOneTurnLeaveWithOneDoorbell) {
  Link* link = Connected();
  ASSERT_NE(link, nullptr);
  PollUntil([&] { return !executor().Poll(); });
  const uint64_t before = ServerStats().doorbells;
  Flood flood(4, 900);
  flood.Run(*link);
  PollUntil([&] { return client_listener_.received() == 4; });
  EXPECT_EQ(echo_.at_once(), 0u);
  EXPECT_EQ(ServerStats().doorbells - before, 1u);
}

TEST_F(SendNowTest, ARefusalClosesTheLinkAtTheTurnsEndAndNotInsideItsHandler) {
  Link* link = Connected();
  ASSERT_NE(link, nullptr);
  PollUntil([&] { return !executor().Poll(); });
  echo_.RefuseNext(context());
  FrameHeader frame;
  *link->Append(frame, 1) = 0;
  PollUntil([&] { return echo_.answered() == 1; });
  EXPECT_EQ(echo_.at_once(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(echo_.reason())) << echo_.reason();
  WaitUntilNoLinks();
  EXPECT_EQ(client_listener_.received(), 0u);
}

// The SEND with the last credit says that its sender starves, and borrows more: its answer waits
// for the receives.
TEST_F(SendNowTest, CreditsAreNotLentBeforeTheirReceivesArePosted) {
  Link* link = Connected(/*pool=*/256);
  ASSERT_NE(link, nullptr);
  PollUntil([&] { return !executor().Poll(); });
  const uint32_t others = link->send_credits() - 1;
  Flood flood(others, 900);
  flood.Run(*link);
  executor().Poll();
  FrameHeader last;
  last.call_generation = others;
  *link->Append(last, 1) = static_cast<char>(others);
  EXPECT_EQ(server().stats().credits_borrowed, 0u);
  PollUntil([&] { return client_listener_.received() == others + 1; });
  EXPECT_GT(server().stats().credits_borrowed, 0u);
  EXPECT_EQ(echo_.at_once(), 0u);
}

}  // namespace send_now_test
}  // namespace verbena::internal
