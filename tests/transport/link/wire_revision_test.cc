// Two endpoints whose devices of software have wires of different revisions refuse each other in
// words before they connect a queue pair.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/passing_stream.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace wire_revision_test {

class WireRevisionTest : public LinksFixture {
 protected:
  void SetUp() override { Start({}, {}); }

  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    return std::make_unique<OtherHello>(std::move(stream), [](LinkParameters hello) {
      ++hello.wire_revision;
      return EncodeHello(hello, {});
    });
  }

  Receiver client_listener_;
  Receiver server_listener_;
};

TEST_F(WireRevisionTest, DevicesOfDifferentRevisionsAreRefusedInWordsOnBothSides) {
  const absl::Status client = TryConnect(client_listener_, server_listener_).status();
  PollUntil([&] { return accepted().has_value(); });
  const uint32_t ours = device().capabilities().wire_revision;
  EXPECT_NE(ours, 0u);
  const std::string revisions =
      "soft queue pairs of revisions " + std::to_string(ours) + " and " + std::to_string(ours + 1);
  for (const absl::Status& status : {client, accepted()->status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.message().find(revisions), std::string::npos) << status;
    EXPECT_NE(status.message().find("run the same version"), std::string::npos) << status;
  }
}

}  // namespace wire_revision_test
}  // namespace verbena::internal
