// A link whose bootstrap stream throws closes with a reason, and gives its slot back.

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/passing_stream.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace throwing_stream_test {

// A server's stream that receives the client's Ready, and throws afterwards.
class ThrowingStream final : public PassingStream {
 public:
  ThrowingStream(std::unique_ptr<MessageStream> stream, bool at_once)
      : PassingStream(std::move(stream)), at_once_(at_once) {}

  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() override {
    if (++receives_ == 1) return PassingStream::Receive();
    if (at_once_) throw std::runtime_error("out of cheese");
    return Throw();
  }

 private:
  static Task<absl::StatusOr<std::string>> Throw() {
    throw std::runtime_error("out of cheese");
    co_return absl::UnknownError("");
  }

  const bool at_once_;
  int receives_ = 0;
};

// Whether the stream throws when it is called, or from its Task.
class ThrowingStreamTest : public LinksFixture, public ::testing::WithParamInterface<bool> {
 protected:
  std::unique_ptr<MessageStream> WrapServerStream(std::unique_ptr<MessageStream> stream) override {
    return std::make_unique<ThrowingStream>(std::move(stream), GetParam());
  }
};

TEST_P(ThrowingStreamTest, ALinkWhoseStreamThrowsCloses) {
  Start({}, {});
  Receiver client_listener, server_listener;
  ASSERT_NE(Connect(client_listener, server_listener), nullptr);
  const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
  PollUntil([this] { return client().stats().links + server().stats().links == 0; },
            [limit] { ASSERT_LT(Clock::Real().Now(), limit) << "the link stays"; });
  EXPECT_TRUE(absl::IsInternal(server_listener.reason())) << server_listener.reason();
  EXPECT_NE(server_listener.reason().message().find("out of cheese"), std::string::npos)
      << server_listener.reason();
}

INSTANTIATE_TEST_SUITE_P(AtOnce, ThrowingStreamTest, ::testing::Bool());

}  // namespace throwing_stream_test
}  // namespace verbena::internal
