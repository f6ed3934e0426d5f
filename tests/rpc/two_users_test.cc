// Processes that cannot share memory are told so before a call begins: those of two users, and the
// child of a fork, which has none of its parent's threads. Over what they can share they talk.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "tests/rpc/server_process.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/in_a_child.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena {
namespace two_users_test {

constexpr uid_t kNobody = 65534;

bool MayBecomeNobody() {
  return SucceedsInAChild([] { return seteuid(kNobody) == 0; });
}

class TwoUsersTest : public RpcTest {
 protected:
  ~TwoUsersTest() override {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
  }

  // A server of another user, and our client, both on a device of that name.
  void StartOn(const std::string& device) {
    process_ = std::make_unique<ServerProcess<TestingService>>(
        "127.0.0.1:0", [device](TestingService&, RuntimeOptions& options, internal::TestDevice&) {
          if (seteuid(kNobody) != 0) _exit(1);
          options.device = device;
        });
    client_runtime_ = StartRuntime({.device = device});
    channel_ = std::make_unique<Channel>(*client_runtime_, process_->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }

  std::unique_ptr<ServerProcess<TestingService>> process_;
};

TEST_F(TwoUsersTest, MemoryIsNotSharedAndTheStatusSaysWhatReachesTheOtherUser) {
  if (!MayBecomeNobody()) GTEST_SKIP() << "this user cannot become another one";
  StartOn("soft");
  const absl::Status status = Run(EchoOnce(1, "root's"));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted) << status;
  EXPECT_NE(status.message().find("belongs to user"), std::string::npos) << status;
  EXPECT_NE(status.message().find("VERBENA_DEVICE=soft:tcp for both"), std::string::npos) << status;
}

TEST_F(TwoUsersTest, WithoutANamedDeviceTheyTalkOverTcp) {
  if (!MayBecomeNobody()) GTEST_SKIP() << "this user cannot become another one";
  const char* const before = std::getenv("VERBENA_DEVICE");
  const std::string device = before == nullptr ? "" : before;
  unsetenv("VERBENA_DEVICE");
  StartOn("auto");
  EXPECT_EQ(Run(EchoOnce(1, "root's")), absl::OkStatus());
  for (const DeviceStats& each : client_runtime_->device_stats(0)) {
    if (each.endpoint.links > 0) {
      EXPECT_NE(each.kind, "soft");
    }
  }
  if (before != nullptr) setenv("VERBENA_DEVICE", device.c_str(), 1);
}

TEST_F(TwoUsersTest, TheyTalkOverTcp) {
  if (!MayBecomeNobody()) GTEST_SKIP() << "this user cannot become another one";
  StartOn("soft:tcp");
  EXPECT_EQ(Run(EchoOnce(1, "root's")), absl::OkStatus());
}

class ForkTest : public RpcTest {
 protected:
  void SetUp() override { StartBoth(); }
};

TEST_F(ForkTest, ARuntimeOfTheChildReachesItsParentsServer) {
  const std::string address =
      "localhost" + server_->address().substr(server_->address().rfind(':'));
  // The parent has a thread that looks names up, and the child none.
  Channel by_name(*client_runtime_, address);
  EXPECT_TRUE(client_runtime_->BlockOn(testing::Testing::Stub(by_name).Echo({})).ok());
  const auto echo_in_child = [&address]() noexcept {
    auto runtime = Runtime::Start({});
    if (!runtime.ok()) _exit(2);
    Channel channel(**runtime, address);
    testing::Testing::Stub stub(channel);
    testing::EchoRequest request;
    request.set_data("from the child");
    const absl::StatusOr<testing::EchoReply> reply = (*runtime)->BlockOn(stub.Echo(request));
    _exit(reply.ok() && reply->data() == request.data() ? 0 : 3);
  };
  const pid_t child = fork();
  if (child == 0) echo_in_child();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
}

using ForkDeathTest = ForkTest;

TEST_F(ForkDeathTest, ACallOverTheParentsRuntimeAbortsAndSaysWhatToDo) {
  // The child runs this and nothing before it.
  GTEST_FLAG_SET(death_test_style, "fast");
  EXPECT_DEATH((void)Run(EchoOnce(1, "from the child")), "is a fork of .* first, then Runtime");
}

}  // namespace two_users_test
}  // namespace verbena
