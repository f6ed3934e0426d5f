// A link whose bootstrap stream throws closes with a reason, and gives its slot back.

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/scripted_stream.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace throwing_stream_test {

// The server receives the client's Ready, and nothing afterwards.
Task<absl::Status> Throw(MessageStream&, int message) {
  if (message > 1) throw std::runtime_error("out of cheese");
  co_return absl::OkStatus();
}
VERBENA_CORO_WRAPPER Task<absl::Status> ThrowAtOnce(MessageStream& stream, int message) {
  if (message > 1) throw std::runtime_error("out of cheese");
  return Throw(stream, message);
}

// Whether the stream throws when it is called, or from its Task.
class ThrowingStreamTest : public LinksFixture, public ::testing::WithParamInterface<bool> {
 protected:
  std::unique_ptr<MessageStream> WrapServerStream(std::unique_ptr<MessageStream> stream) override {
    ScriptedStream::Step step = Throw;
    if (GetParam()) step = ThrowAtOnce;
    return std::make_unique<ScriptedStream>(std::move(stream),
                                            ScriptedStream::Script{.before_receive = step});
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
