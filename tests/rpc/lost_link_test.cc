// A server's link that is lost stays in memory until the last of its handlers ends.

#include <memory>
#include <string>
#include <vector>

#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/testing_service.h"
#include "tests/rpc/waiting_replies.h"

namespace verbena::internal {
namespace lost_link_test {

class LostLinkTest : public RpcTest {
 protected:
  ~LostLinkTest() override { service_.let_go = true; }
};

// One call waits for credits to answer, and ends with the link. A later one still runs: it uses the
// server's side of the link until it ends, also when another link is accepted meanwhile.
TEST_F(LostLinkTest, ALinkWithAHandlerLeftIsNotFreed) {
  StartBoth();
  auto rogue = std::make_unique<RoguePeer>(*client_runtime_);
  rogue->ConnectTo(server_->address());
  std::vector<RogueFrame> requests = MoreCallsThanCredits();
  requests.push_back(Request("verbena.testing.Testing/Linger", RoguePeer::kCredits + 1, 0));
  rogue->Send(EncodeSend(kCorrect, requests));
  EXPECT_EQ(Run(service_.lingering.Until(1)), absl::OkStatus())
      << "a handler runs behind the waiting call";
  rogue.reset();
  Eventually([&] { return server_runtime_->endpoint_stats(0).links == 0; }, "the link is lost");
  EXPECT_EQ(Run(EchoOnce(1, "over a later link")), absl::OkStatus());
  EXPECT_EQ(service_.lingering, 1);
  service_.let_go = true;
  EXPECT_EQ(Run(service_.lingering.Until(0)), absl::OkStatus()) << "the handler ends";
  EXPECT_EQ(Run(EchoOnce(2, "still there")), absl::OkStatus());
}

}  // namespace lost_link_test
}  // namespace verbena::internal
