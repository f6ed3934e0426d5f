// A handshake has its whole time also if it begins in a turn that a handler has held for longer
// than that: on either side.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace handshake_time_test {

class HandshakeTimeTest : public LinksFixture {
 protected:
  void Start(Duration clients_time) {
    LinkLimits limits;
    limits.connect_timeout = clients_time;
    LinksFixture::Start(limits, {});
    clock().Stop();
  }

  // Each of these two runs in the turn in which its side's handshake begins, right before that.
  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    if (holds_client_) HoldTheTurn();
    return stream;
  }
  std::unique_ptr<MessageStream> WrapServerStream(std::unique_ptr<MessageStream> stream) override {
    if (holds_server_) HoldTheTurn();
    return stream;
  }
  // Holds the turn as a handler does that blocks.
  void HoldTheTurn() {
    (void)executor().now();
    clock().Advance(kTime + std::chrono::seconds(1));
  }

  static constexpr Duration kTime = LinkLimits().connect_timeout;
  bool holds_client_ = false;
  bool holds_server_ = false;
  Receiver at_client_;
  Receiver at_server_;
};

TEST_F(HandshakeTimeTest, AClientsCountsFromItsBeginning) {
  Start(kTime);
  holds_client_ = true;
  const absl::StatusOr<Link*> link = TryConnect(at_client_, at_server_);
  EXPECT_TRUE(link.ok()) << link.status();
}

// The client, which waits for the server meanwhile, has more time.
TEST_F(HandshakeTimeTest, AServersCountsFromItsBeginning) {
  Start(std::chrono::hours(1));
  holds_server_ = true;
  std::optional<absl::StatusOr<Link*>> link;
  BeginConnect(at_client_, at_server_, link);
  PollUntil([this] { return accepted().has_value(); });
  EXPECT_TRUE(accepted()->ok()) << accepted()->status();
  PollUntil([&link] { return link.has_value(); });
}

}  // namespace handshake_time_test
}  // namespace verbena::internal
