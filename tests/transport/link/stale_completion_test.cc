// A completion whose link is gone, and whose slot another link has.

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/executor/completion_sink.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena {
namespace {

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
    auto& sink = (CompletionSink&)endpoint;  // NOLINT: a private base, which only this cast reaches
    sink.OnCompletions(&completion, 1);
  }

  Receiver sink_;  // of every link, at both ends
};

TEST_F(StaleCompletionTest, ItIsCountedAndDoesNotTouchTheSlotsNextOwner) {
  Link* first = Connect(sink_, sink_);
  ASSERT_NE(first, nullptr);
  const LinkKey old_key = first->key();
  first->Close(absl::CancelledError("the test ends it"));
  WaitUntilNoLinks();
  Link* next = Connect(sink_, sink_);
  ASSERT_NE(next, nullptr);
  ASSERT_EQ(next->key().slot, old_key.slot);

  Deliver(client(), {WrId::Kind::kSend, 0, old_key.generation, old_key.slot});
  EXPECT_EQ(client().stats().stale_completions, 1u);
  EXPECT_TRUE(next->open());
}

}  // namespace
}  // namespace verbena
