// A server says of itself, and of each service, whether it serves, and that it does not from the
// first moment of its shutdown.

#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/rpc/reflection/served.h"
#include "tests/rpc/runtime_pair.h"
#include "verbena/health.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/reflection.h"
#include "verbena/rpc/reflection/methods.h"

namespace verbena::internal {
namespace health_test {

using health::v1::CheckReply;
using health::v1::CheckRequest;

constexpr char kServed[] = "verbena.testing.partly.Served";

class HealthTest : public RuntimePair {
 protected:
  // The client's calls go to the last of the server's executors.
  void Serve(int executors) {
    server_runtime_ = StartRuntime({.executors = executors});
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(*server_runtime_, {&partly_, &health_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(),
                                         ChannelOptions{.server_executor = executors - 1});
  }
  ~HealthTest() override { StopAll(); }

  absl::StatusOr<CheckReply> Check(const std::string& service) {
    CheckRequest request;
    request.set_service(service);
    return client_runtime_->BlockOn(
        UnaryCall<CheckRequest, CheckReply>(CoreOf(*channel_), kCheckHealth, std::move(request)));
  }
  // UNKNOWN if the call fails.
  CheckReply::Status StatusOf(const std::string& service) {
    const absl::StatusOr<CheckReply> reply = Check(service);
    return reply.ok() ? reply->status() : CheckReply::UNKNOWN;
  }

  PartlyService partly_;
  HealthService health_;
};

TEST_F(HealthTest, EachServiceServesUntilTheProgramSaysOtherwise) {
  Serve(1);
  EXPECT_EQ(CheckReply::SERVING, StatusOf(""));
  EXPECT_EQ(CheckReply::SERVING, StatusOf(kServed));
  health_.SetServing(kServed, false);
  EXPECT_FALSE(health_.serving(kServed));
  EXPECT_EQ(CheckReply::NOT_SERVING, StatusOf(kServed));
  EXPECT_EQ(CheckReply::SERVING, StatusOf(""));
  health_.SetServing(kServed, true);
  EXPECT_EQ(CheckReply::SERVING, StatusOf(kServed));
}

TEST_F(HealthTest, NoServiceServesWhileTheServerDoesNot) {
  Serve(1);
  health_.SetServing("", false);
  EXPECT_EQ(CheckReply::NOT_SERVING, StatusOf(""));
  EXPECT_EQ(CheckReply::NOT_SERVING, StatusOf(kServed));
}

TEST_F(HealthTest, AServiceThatIsNotServedIsNotFound) {
  Serve(1);
  health_.SetServing("no.Service", false);
  const absl::Status status = Check("no.Service").status();
  EXPECT_EQ(absl::StatusCode::kNotFound, status.code()) << status;
}

TEST_F(HealthTest, AShutdownShowsBeforeAnyExecutorHearsOfIt) {
  Serve(2);
  ASSERT_EQ(CheckReply::SERVING, StatusOf(kServed));
  // The shutdown begins on executor 0, and the client is connected with executor 1.
  std::latch blocked(1);
  std::latch release(1);
  JoinHandle<void> blocker = server_runtime_->Spawn(
      [&]() -> Task<void> {
        blocked.count_down();
        release.wait();
        co_return;
      },
      0);
  blocked.wait();
  std::thread shutdown([this] { server_->Shutdown(std::chrono::seconds(0)); });
  Eventually([this] { return StatusOf(kServed) == CheckReply::NOT_SERVING; }, "NOT_SERVING");
  release.count_down();
  shutdown.join();
  blocker.Join();
}

}  // namespace health_test
}  // namespace verbena::internal
