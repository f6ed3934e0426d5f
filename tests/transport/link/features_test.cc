// A link uses the features that both sides said in the handshake, and no other: it works with an
// older peer, which lacks some, and with a newer one, which has bits that nobody here knows.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/passing_stream.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace features_test {

class FeaturesTest : public LinksFixture {
 protected:
  void SetUp() override {
    LinkLimits limits;
    limits.payload_checksum = PayloadChecksum::kOn;
    Start(limits, limits);
  }

  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    if (!says_.has_value()) return stream;
    return std::make_unique<OtherHello>(std::move(stream),
                                        [features = *says_](const LinkParameters& hello) {
                                          return EncodeHello(hello, {.features = features});
                                        });
  }

  static uint64_t FeaturesOf(const Link& link) {
    return (link.reports_invalidation() ? kFeatureInvalidation : 0) |
           (link.checks_payloads() ? kFeatureChecksum : 0) |
           (link.has_grants() ? kFeatureGrants : 0) |
           (link.names_attempts() ? kFeatureEarlierAttempts : 0) |
           (link.tells_highest_number() ? kFeatureHighestNumber : 0) |
           (link.packet_padding() != 0 ? kFeaturePaddedPing : 0);
  }

  // Connects a client that says `features` in its Hello, by default its own. Sends frames both
  // ways, and returns the features that both ends of the link use.
  uint64_t Agreed(std::optional<uint64_t> features) {
    says_ = features;
    Receiver at_client;
    Receiver at_server;
    Link* link = Connect(at_client, at_server);
    if (link == nullptr || !accepted()->ok()) return 0;
    Link* peer = **accepted();
    Flood there(10, 100);
    Flood back(10, 100);
    there.Run(*link);
    back.Run(*peer);
    PollUntil([&] { return at_client.received() == 10 && at_server.received() == 10; });
    const uint64_t agreed = FeaturesOf(*link);
    EXPECT_EQ(FeaturesOf(*peer), agreed);
    link->Close(absl::CancelledError("the test is done with it"));
    WaitUntilNoLinks();
    return agreed;
  }

 private:
  std::optional<uint64_t> says_;
};

TEST_F(FeaturesTest, ALinkToAnOlderPeerUsesOnlyWhatThatKnows) {
  const uint64_t ours = kFeatureChecksum | kFeatureGrants | kFeatureEarlierAttempts |
                        kFeaturePaddedPing | kFeatureHighestNumber |
                        (device().capabilities().windows_checked ? kFeatureInvalidation : 0);
  EXPECT_EQ(Agreed({}), ours);
  EXPECT_EQ(Agreed(0), 0u);
  for (const uint64_t bit : {kFeatureInvalidation, kFeatureChecksum, kFeatureGrants,
                             kFeatureEarlierAttempts, kFeaturePaddedPing, kFeatureHighestNumber}) {
    EXPECT_EQ(Agreed(bit), bit & ours);
  }
}

TEST_F(FeaturesTest, BitsOfANewerPeerThatNobodyKnowsAreIgnored) {
  EXPECT_EQ(Agreed(~uint64_t{0}), Agreed({}));
  EXPECT_EQ(Agreed(~kSupportedFeatures), 0u);
}

}  // namespace features_test
}  // namespace verbena::internal
