// Links under back pressure lose nothing: frames wait for credits, buffers and room, credits are
// borrowed and recalled, and each link goes on.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace back_pressure_test {

constexpr uint32_t kInitialCredits = 8;

// A server whose `links` links can borrow `pool` credits beyond their initial ones.
LinkLimits WithPool(uint32_t links, uint32_t pool) {
  LinkLimits limits;
  limits.max_links = links;
  limits.initial_credits = kInitialCredits;
  limits.srq_depth = links * (kInitialCredits + kReserveCredits) + kRepostBatch + pool;
  limits.eager_bytes = 1024;
  return limits;
}

// Looks at the bytes between a frame's body and the next multiple of 8.
class PaddingReader final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader& frame, const char* body) override {
    const size_t end = FrameBytes(frame.body_bytes) - sizeof(FrameHeader);
    for (size_t i = frame.body_bytes; i < end; ++i) EXPECT_EQ(body[i], 0) << "byte " << i;
    ++frames_;
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }

  uint32_t frames() const { return frames_; }

 private:
  uint32_t frames_ = 0;
};

class BackPressureTest : public LinksFixture {
 protected:
  void StartServer(const LinkLimits& server_limits) {
    LinkLimits client_limits;
    client_limits.eager_bytes = 1024;
    Start(client_limits, server_limits);
  }

  // RNR is impossible only while every credit that a peer holds, and every SEND on its way, has a
  // receive behind it.
  void ExpectReceivesForCredits(std::initializer_list<Link*> links) {
    uint64_t needed = client().stats().traffic.sends - server().stats().traffic.receives;
    for (Link* link : links) needed += link->send_credits();
    ASSERT_GE(server().stats().receives_posted, needed);
  }

  // Long enough for two liveness checks: the second finds a link quiet that sends nothing.
  void PassLivenessChecks() {
    for (int check = 0; check < 2; ++check) {
      clock().Advance(LinkLimits().ping_interval);
      for (int turn = 0; turn < 100; ++turn) executor().Poll();
    }
  }

  // Opens a link to a_, which borrows all of the server's pool, and one to b_.
  void LendAllToTheFirst(uint32_t pool, Link*& first, Link*& second) {
    StartServer(WithPool(2, pool));
    first = Connect(client_listener_, a_);
    second = Connect(client_listener_, b_);
    ASSERT_NE(first, nullptr);
    ASSERT_NE(second, nullptr);
    Flood to_a(2000, 900);
    to_a.Run(*first);
    PollUntil([&] { return a_.received() == 2000; });
    ASSERT_EQ(server().stats().credits_borrowed, pool) << "the first link was to take all";
  }

  Receiver client_listener_;
  Receiver a_;
  Receiver b_;
  Receiver c_;
  static constexpr uint32_t kBuffers = 16;
  std::array<Receiver, kBuffers> one_each_;
  PaddingReader padding_;
};

TEST_F(BackPressureTest, FramesOfOneTurnShareASend) {
  StartServer(WithPool(1, 0));
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  Flood flood(10, 32);
  flood.Run(*link);
  PollUntil([&] { return a_.received() == 10; });
  EXPECT_EQ(link->stats().sends, 1u);
  EXPECT_EQ(link->stats().frames_sent, 10u);
  EXPECT_EQ(link->stats().doorbells, 1u);
}

TEST_F(BackPressureTest, PaddingTellsNothingOfWhatTheBufferHeldBefore) {
  StartServer(WithPool(1, 0));
  Link* link = Connect(client_listener_, padding_);
  ASSERT_NE(link, nullptr);
  FrameHeader frame;
  std::memset(link->Append(frame, 900), 0xff, 900);
  PollUntil([&] { return padding_.frames() == 1; });
  // The same buffer: the one that came back last is taken first.
  for (uint32_t body_bytes = 1; body_bytes <= 8; ++body_bytes) {
    std::memset(link->Append(frame, body_bytes), 0xff, body_bytes);
  }
  PollUntil([&] { return padding_.frames() == 9; });
}

TEST_F(BackPressureTest, ReceivesNeverFallBelowTheCreditsThatPeersHold) {
  StartServer(WithPool(2, 0));
  Link* first = Connect(client_listener_, a_);
  Link* second = Connect(client_listener_, b_);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  Flood to_a(2000, 900);
  Flood to_b(2000, 1);
  to_a.Run(*first);
  to_b.Run(*second);
  PollUntil([&] { return a_.received() == 2000 && b_.received() == 2000; },
            [&] { ExpectReceivesForCredits({first, second}); });
}

TEST_F(BackPressureTest, StarvingLinkIsLentWhatNobodyUses) {
  StartServer(WithPool(2, 100));
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(server().stats().credits_borrowed, 0u);
  Flood flood(2000, 900);
  flood.Run(*link);
  PollUntil([&] { return a_.received() == 2000; });
  EXPECT_GT(link->stats().credit_waits, 0u);
  EXPECT_GT(server().stats().credits_borrowed, 0u);
  EXPECT_LE(server().stats().credits_borrowed, 100u);
}

TEST_F(BackPressureTest, LentCreditsAreRecalledFromALinkThatIsQuiet) {
  constexpr uint32_t kPool = 16;
  Link* quiet = nullptr;
  Link* busy = nullptr;
  ASSERT_NO_FATAL_FAILURE(LendAllToTheFirst(kPool, quiet, busy));
  PassLivenessChecks();

  Flood to_b(2000, 900);
  to_b.Run(*busy);
  PollUntil([&] { return b_.received() == 2000; },
            [&] { ExpectReceivesForCredits({quiet, busy}); });
  EXPECT_GT(server().stats().traffic.recalls, 0u);
  EXPECT_LE(quiet->send_credits(), kInitialCredits);
  EXPECT_LE(server().stats().credits_borrowed, kPool);
  for (int turn = 0; turn < 100; ++turn) executor().Poll();
  EXPECT_GT(busy->send_credits(), kInitialCredits) << "none of what the other gave back";
}

// No liveness check has found it quiet.
TEST_F(BackPressureTest, ABusyLinkKeepsItsFairShareOfWhatWasLent) {
  constexpr uint32_t kPool = 16;
  clock().Stop();
  Link* first = nullptr;
  Link* second = nullptr;
  ASSERT_NO_FATAL_FAILURE(LendAllToTheFirst(kPool, first, second));

  Flood to_b(2000, 900);
  to_b.Run(*second);
  PollUntil([&] { return b_.received() == 2000; });
  for (int turn = 0; turn < 100; ++turn) executor().Poll();
  constexpr uint32_t kWindow = kInitialCredits + kPool / 2;
  EXPECT_LE(server().stats().traffic.recalls, 1u) << "none for what it did not hold";
  EXPECT_LE(first->send_credits(), kWindow);
  EXPECT_GT(first->send_credits(), kWindow / 2) << "it knows of half a window at least";
  EXPECT_EQ(server().stats().credits_borrowed, kPool);
}

TEST_F(BackPressureTest, CreditsThatThePeerDoesNotHoldAreTakenWithoutARecall) {
  StartServer(WithPool(1, 16));
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  Link& end = ***accepted();
  const IssuedCredits& issued = end.issued();
  Flood to_a(2000, 900);
  to_a.Run(*link);
  PollUntil([&] { return a_.received() == 2000; });
  for (uint32_t i = 2000; issued.outstanding() == issued.window(); ++i) {
    Flood one_more(i + 1, 900, i);  // which may wait for a credit
    one_more.Run(*link);
    PollUntil([&] { return a_.received() == i + 1; });
  }
  const uint32_t borrowed = server().stats().credits_borrowed;
  ASSERT_GT(borrowed, 0u);
  // As if the endpoint had taken it out of its list to ask it.
  RecallableLink& asked = end;
  asked.Unlink();
  asked.Recall(1);
  EXPECT_FALSE(issued.recalled());
  EXPECT_EQ(server().stats().credits_borrowed, borrowed - 1);
  EXPECT_TRUE(asked.linked()) << "it may be asked again";
  for (int turn = 0; turn < 100; ++turn) executor().Poll();
  EXPECT_EQ(server().stats().traffic.recalls, 0u);
}

TEST_F(BackPressureTest, TwoLinksThatStarveBothComeToTheirEnd) {
  StartServer(WithPool(2, 4));
  Link* first = Connect(client_listener_, a_);
  Link* second = Connect(client_listener_, b_);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  Flood to_a(2000, 900);
  Flood to_b(2000, 900);
  to_a.Run(*first);
  to_b.Run(*second);
  uint32_t furthest_apart = 0;
  PollUntil([&] { return a_.received() == 2000 && b_.received() == 2000; },
            [&] {
              if (a_.received() == 2000 || b_.received() == 2000) return;
              furthest_apart =
                  std::max({furthest_apart, a_.received() - std::min(a_.received(), b_.received()),
                            b_.received() - std::min(a_.received(), b_.received())});
            });
  // Neither was served to its end before the other had its turn.
  EXPECT_LT(furthest_apart, 1000u);
}

TEST_F(BackPressureTest, BorrowingStopsAtALinksOwnMaximum) {
  LinkLimits limits = WithPool(1, 200);
  limits.max_credits = 20;
  StartServer(limits);
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  Flood flood(2000, 900);
  flood.Run(*link);
  PollUntil([&] { return a_.received() == 2000; },
            [&] { ASSERT_LE(server().stats().credits_borrowed, 20u - kInitialCredits); });
}

// The pool is empty, but the link could not borrow the credits that others would give back.
TEST_F(BackPressureTest, ALinkAtItsOwnMaximumTakesNoCreditsFromOthers) {
  constexpr uint32_t kMaxCredits = 20;
  constexpr uint32_t kPool = 2 * (kMaxCredits - kInitialCredits);
  LinkLimits limits = WithPool(2, kPool);
  limits.max_credits = kMaxCredits;
  StartServer(limits);
  Link* first = Connect(client_listener_, a_);
  Link* second = Connect(client_listener_, b_);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  Flood to_a(2000, 900);
  to_a.Run(*first);
  PollUntil([&] { return a_.received() == 2000; });
  Flood to_b(2000, 900);
  to_b.Run(*second);
  PollUntil([&] { return b_.received() == 2000; });
  ASSERT_EQ(server().stats().credits_borrowed, kPool) << "both were to take their share";
  Flood more(4000, 900, 2000);
  more.Run(*second);
  PollUntil([&] { return b_.received() == 4000; });
  EXPECT_EQ(server().stats().traffic.recalls, 0u);
  EXPECT_EQ(server().stats().credits_borrowed, kPool);
}

TEST_F(BackPressureTest, FullSendQueueMakesFramesWaitAndLosesNone) {
  LinkLimits server_limits = WithPool(1, 0);
  server_limits.srq_depth = 2048;
  server_limits.initial_credits = 1024;
  server_limits.max_credits = 1024;
  StartServer(server_limits);
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  Flood flood(1000, 900);
  flood.Run(*link);
  EXPECT_LE(flood.sent(), 64u) << "more SENDs than the send queue has slots";
  PollUntil([&] { return a_.received() == 1000; });
  EXPECT_GT(link->stats().slot_waits, 0u);
  EXPECT_EQ(link->stats().credit_waits, 0u);
}

TEST_F(BackPressureTest, CreditsOfALinkThatEndsGoToTheOthers) {
  constexpr uint32_t kPool = 16;
  StartServer(WithPool(2, kPool));
  Link* ends = Connect(client_listener_, a_);
  ASSERT_NE(ends, nullptr);
  Flood to_a(500, 900);
  to_a.Run(*ends);
  PollUntil([&] { return a_.received() == 500; });
  ASSERT_EQ(server().stats().credits_borrowed, kPool);
  ends->Close(absl::CancelledError("the test ends it"));
  WaitUntilNoLinks();
  EXPECT_EQ(server().stats().credits_borrowed, 0u);
  EXPECT_TRUE(absl::IsUnavailable(a_.reason())) << a_.reason();
}

// A buffer that the device does not take inline is held until a completion says that it was read.
TEST_F(BackPressureTest, BuffersComeBackThoughTheLastSendOfAFlushHoldsNone) {
  LinkLimits limits;
  limits.max_links = 1;
  limits.eager_bytes = 16384;
  Start(limits, limits);
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  ASSERT_LT(client().supplies().max_inline_bytes(), 16000u);
  const size_t all = client().supplies().buffers().free_count();
  Flood large(2, 16000);
  large.Run(*link);
  FrameHeader small;
  small.call_generation = 2;
  std::memset(link->Append(small, 1000), 2, 1000);
  EXPECT_EQ(client().supplies().buffers().free_count(), all - 3);
  PollUntil([&] { return a_.received() == 3; });
  for (int turn = 0; turn < 1000; ++turn) executor().Poll();
  EXPECT_EQ(client().supplies().buffers().free_count(), all);
  EXPECT_EQ(link->stats().sends, 3u);
}

TEST_F(BackPressureTest, ALinkThatWaitsForBuffersIsWokenByAnothersCompletion) {
  LinkLimits limits;
  limits.max_links = kBuffers + 2;
  limits.srq_depth = 512;
  limits.eager_bytes = 16384;
  limits.send_buffers = kBuffers;
  Start(limits, limits);
  std::array<Link*, kBuffers> holders;
  for (uint32_t i = 0; i < kBuffers; ++i) {
    holders[i] = Connect(client_listener_, one_each_[i]);
    ASSERT_NE(holders[i], nullptr);
  }
  Link* second_last = Connect(client_listener_, b_);
  Link* last = Connect(client_listener_, c_);
  ASSERT_NE(second_last, nullptr);
  ASSERT_NE(last, nullptr);
  for (Link* holder : holders) Flood(1, 16000).Run(*holder);
  ASSERT_EQ(client().supplies().buffers().free_count(), 0u);
  Flood some(20, 16000);
  Flood few(3, 16000);
  some.Run(*second_last);
  few.Run(*last);
  EXPECT_EQ(some.sent() + few.sent(), 0u);
  for (int turn = 0; turn < 100000 && b_.received() < 20; ++turn) executor().Poll();
  EXPECT_EQ(c_.received(), 3u);
  EXPECT_EQ(b_.received(), 20u);
}

int RefuseWithoutSayingWhich(ibv_qp*, ibv_send_wr*, ibv_send_wr**) { return ENOMEM; }

TEST_F(BackPressureTest, PostRefusedByADeviceThatNamesNoWrEndsTheLinkAlone) {
  StartServer(WithPool(2, 16));
  Receiver refused;
  Link* ends = Connect(refused, a_);
  Link* other = Connect(client_listener_, b_);
  ASSERT_NE(ends, nullptr);
  ASSERT_NE(other, nullptr);
  auto& post_send = context().ops.post_send;
  const auto real = std::exchange(post_send, RefuseWithoutSayingWhich);
  Flood lost(3, 900);
  lost.Run(*ends);
  PollUntil([&] { return !refused.reason().ok(); }, [&] { post_send = real; });
  post_send = real;
  EXPECT_TRUE(absl::IsResourceExhausted(refused.reason())) << refused.reason();
  EXPECT_EQ(a_.received(), 0u);
  PollUntil([&] { return client().stats().links == 1; });
  Flood flood(500, 900);
  flood.Run(*other);
  PollUntil([&] { return b_.received() == 500; });
}

}  // namespace back_pressure_test
}  // namespace verbena::internal
