// Two endpoints whose devices of software have wires of different revisions refuse each other in
// words before they connect a queue pair.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace {

// A client's stream that raises the revision in its Hello, which is the first that it sends.
class RaisingStream final : public MessageStream {
 public:
  explicit RaisingStream(std::unique_ptr<MessageStream> stream) : stream_(std::move(stream)) {}

  Task<absl::Status> Send(std::string message) override {
    if (std::exchange(is_hello_, false)) {
      LinkParameters hello = ParseHello(message, {}).value();
      ++hello.wire_revision;
      message = EncodeHello(hello, {});
    }
    co_return co_await stream_->Send(std::move(message));
  }
  Task<absl::StatusOr<std::string>> Receive() override { co_return co_await stream_->Receive(); }
  void Close() override { stream_->Close(); }
  const std::string& peer() const override { return stream_->peer(); }

 private:
  const std::unique_ptr<MessageStream> stream_;
  bool is_hello_ = true;
};

class WireRevisionTest : public LinksFixture {
 protected:
  void SetUp() override { Start({}, {}); }

  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    return std::make_unique<RaisingStream>(std::move(stream));
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

}  // namespace
}  // namespace verbena::internal
