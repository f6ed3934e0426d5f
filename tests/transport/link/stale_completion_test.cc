// A completion of a link that is gone does not touch the link that has its slot now.

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace stale_completion_test {

class StaleCompletionTest : public LinksFixture {
 protected:
  // Room for one link each.
  void SetUp() override {
    const LinkLimits one_link = {.max_links = 1, .srq_depth = 64};
    Start(one_link, one_link);
  }

  // As the completion queue would: Endpoint hands this out to its executor alone.
  static void Deliver(Endpoint& endpoint, const WrId& id) {
    ibv_wc completion = {};
    completion.wr_id = id.Pack();
    completion.status = IBV_WC_SUCCESS;
    completion.opcode = IBV_WC_SEND;
    auto& listener =
        (CompletionListener&)endpoint;  // NOLINT: a private base, which only this cast reaches
    listener.OnCompletions(&completion, 1);
  }

  Receiver listener_;  // of every link, at both ends
};

// The completion is made by hand: no device is known to deliver one this late.
TEST_F(StaleCompletionTest, ACompletionOfAnyEarlierLinkDoesNotTouchTheSlotsNextOwner) {
  constexpr uint32_t kReuses = 20;
  Link* link = Connect(listener_, listener_);
  ASSERT_NE(link, nullptr);
  const LinkKey first = link->key();
  for (uint32_t reuse = 0; reuse < kReuses; ++reuse) {
    link->Close(absl::CancelledError("the test ends it"));
    WaitUntilNoLinks();
    link = Connect(listener_, listener_);
    ASSERT_NE(link, nullptr);
    ASSERT_EQ(link->key().slot, first.slot);
  }
  // The link has a SEND at the position of which the completions are, so that one of them could be
  // its own.
  FrameHeader frame;
  frame.kind = FrameKind::kRequest;
  ASSERT_NE(link->Append(frame, 0), nullptr);
  executor().Poll();
  ASSERT_EQ(link->stats().sends, 1u);
  const uint64_t before = client().stats().stale_completions;
  for (uint32_t reuse = 0; reuse < kReuses; ++reuse) {
    Deliver(client(), {WrId::Kind::kSend, 0, first.generation + reuse, first.slot});
    EXPECT_EQ(client().stats().stale_completions - before, reuse + 1);
    EXPECT_TRUE(link->open());
  }
  Deliver(client(), {WrId::Kind::kSend, 0, link->key().generation, first.slot});
  EXPECT_EQ(client().stats().stale_completions - before, kReuses) << "its own is no stale one";
  EXPECT_TRUE(link->open());
}

// A generation has 24 bits: what comes behind them must not reach the slot.
TEST_F(StaleCompletionTest, AGenerationThatWrappedAroundNamesTheSameSlot) {
  const WrId last = {WrId::Kind::kSend, 0, WrId::kGenerationMask, 7};
  const WrId next = {WrId::Kind::kSend, 0, WrId::kGenerationMask + 1, 7};
  EXPECT_EQ(WrId::Unpack(last.Pack()).generation, WrId::kGenerationMask);
  EXPECT_EQ(WrId::Unpack(next.Pack()).generation, 0u);
  EXPECT_EQ(WrId::Unpack(next.Pack()).slot, 7u);
  EXPECT_EQ(WrId::Unpack(next.Pack()).kind, WrId::Kind::kSend);
}

}  // namespace stale_completion_test
}  // namespace verbena::internal
