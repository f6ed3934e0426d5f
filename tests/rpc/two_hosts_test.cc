// Calls to testing_server on another host bring back every byte right, also many at once.
// VERBENA_SERVER_ADDRESS names that host: in the guest phase, a second guest at the other end of a
// cable.

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/rpc/testing_service.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

class TwoHostsTest : public RpcTest {
 protected:
  void SetUp() override {
    const char* address = std::getenv("VERBENA_SERVER_ADDRESS");
    if (address == nullptr) GTEST_SKIP() << "needs a server on another host";
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, address);
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    // The other guest answers pings before its server runs.
    Eventually([this] { return Run(EchoOnce(0, "hello")).ok(); }, "the server answers",
               std::chrono::minutes(2));
  }
};

TEST_F(TwoHostsTest, EveryReplyByteIsRight) {
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(Run(EchoOnce(i, std::string(i * 80, static_cast<char>(i)))), absl::OkStatus());
  }
}

TEST_F(TwoHostsTest, ManyCallsInFlightDoNotMixUpTheirReplies) {
  std::vector<absl::Status> ended(2000, absl::UnknownError("not ended"));
  auto run = [&]() -> Task<void> {
    TaskScope scope(client_runtime_->executor(0));
    for (size_t i = 0; i < ended.size(); ++i) {
      scope.Spawn([this, &ended, i]() -> Task<void> {
        ended[i] = co_await EchoOnce(i, std::string(i % 500, 'x'));
      });
    }
    co_await scope.Join();
  };
  Run(run());
  for (const absl::Status& status : ended) EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace
}  // namespace verbena
