// A handshake that a server refuses for a bound that passes names a time. The client comes again
// then, also for calls without wait_for_ready. If the server names none, or there is no deadline to
// wait for, calls hear of the refusal.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/connect/scripted_bootstrap.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace refused_handshake_test {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// ScriptedRefusals: the answers of a server to its first handshakes. The server reads them on its
// executor.
struct ScriptedRefusals {
  int left = 0;
  std::optional<Duration> wait = {};
  int made = 0;
};

// Refuses handshakes before the server sees them.
class RefusingListener final : public MessageListener {
 public:
  RefusingListener(std::unique_ptr<MessageListener> listener, ScriptedRefusals& refusals)
      : listener_(std::move(listener)), refusals_(refusals) {}

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Accept() override {
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<MessageStream> stream,
                                  co_await listener_->Accept());
      if (refusals_.left == 0) co_return std::move(stream);
      --refusals_.left;
      absl::Status refusal = absl::ResourceExhaustedError("too many at once");
      if (refusals_.wait.has_value()) refusal = WithRetryAfter(refusal, *refusals_.wait);
      (void)co_await ReceiveOffer(*stream, {.executor_count = kMaxExecutors});
      ++refusals_.made;
      (void)co_await RefuseOffer(*stream, refusal);
    }
  }
  void Close() override { listener_->Close(); }
  const std::string& address() const override { return listener_->address(); }

 private:
  const std::unique_ptr<MessageListener> listener_;
  ScriptedRefusals& refusals_;
};

class RefusingBootstrap final : public Bootstrap {
 public:
  RefusingBootstrap(LocalNetwork& network, ScriptedRefusals& refusals)
      : bootstrap_(network), refusals_(refusals) {}

  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(
      std::string target) override {
    return bootstrap_.Connect(std::move(target));
  }
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<MessageListener> listener, bootstrap_.Listen(address));
    return std::make_unique<RefusingListener>(std::move(listener), refusals_);
  }

 private:
  LocalBootstrap bootstrap_;
  ScriptedRefusals& refusals_;
};

class RefusedHandshakeTest : public RpcTest {
 protected:
  ~RefusedHandshakeTest() override { StopAll(); }

  // The server refuses `times` handshakes, and then takes each.
  void Start(int times, std::optional<Duration> wait, RuntimeOptions client = {}) {
    refusals_ = {.left = times, .wait = wait};
    StartServer({.address = "server:1"}, {.use_bootstrap = &bootstrap_});
    client.use_bootstrap = &bootstrap_;
    client_runtime_ = StartRuntime(std::move(client));
  }

  absl::Status CallOnce(const std::string& target, Deadline deadline) {
    Channel channel(*client_runtime_, target);
    testing::Testing::Stub stub(channel);
    return client_runtime_->BlockOn(stub.Echo({}, {.deadline = deadline})).status();
  }

  // A call with a deadline, whose server names a time after connect_timeout.
  void WaitsForALateTurn(const std::string& target) {
    Start(1, kLongestComeAgain, {.clock = &clock_});
    Channel channel(*client_runtime_, target);
    testing::Testing::Stub stub(channel);
    absl::StatusOr<testing::EchoReply> reply = absl::UnknownError("not yet");
    bool ended = false;  // of the client's executor, as all that follows
    const auto call = [&]() -> Task<void> {
      reply = co_await stub.Echo({}, {.deadline = minutes(10)});
      ended = true;
    };
    client_runtime_->Spawn(call());
    // The clock stands still, so that nobody may sleep on this executor.
    const auto until_refused = [&]() -> Task<absl::Status> {
      for (;;) {
        VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel.Servers());
        if (!servers.empty() && !servers.front().last_error.ok()) co_return absl::OkStatus();
        VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
      }
    };
    EXPECT_EQ(Run(until_refused()), absl::OkStatus());
    EXPECT_FALSE(ended);
    // The latest turn, and less than it takes a link to be given up that hears nothing.
    clock_.Advance(*client_runtime_, kLongestComeAgain * 6 / 5 + seconds(1));
    const auto until_ended = [&]() -> Task<absl::Status> {
      while (!ended) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
      co_return absl::OkStatus();
    };
    EXPECT_EQ(Run(until_ended()), absl::OkStatus());
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(refusals_.made, 1);
    clock_.Run();
  }

  testing::FakeClock clock_;
  ScriptedRefusals refusals_;
  LocalNetwork network_;
  RefusingBootstrap bootstrap_{network_, refusals_};
};

TEST_F(RefusedHandshakeTest, ACallWithADeadlineComesAgainAsOftenAsTheServerNamesATime) {
  Start(3, milliseconds(1));
  EXPECT_EQ(CallOnce("server:1", minutes(10)), absl::OkStatus());
  EXPECT_EQ(refusals_.made, 3);
}

TEST_F(RefusedHandshakeTest, ACallWithADeadlineWaitsLongerThanConnectTimeout) {
  WaitsForALateTurn("server:1");
}

TEST_F(RefusedHandshakeTest, ACallToASetWaitsIfItsServersNameATime) {
  WaitsForALateTurn("static:server:1");
}

TEST_F(RefusedHandshakeTest, AServerThatGoesOnRefusingIsAskedLessAndLessOften) {
  RuntimeOptions client;
  client.limits.connect_timeout = milliseconds(200);
  Start(1000, milliseconds(1), std::move(client));
  const absl::Status status = CallOnce("server:1", {});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  // At once, and after at least 8, 16, 32, 64 and 128 ms more.
  EXPECT_LE(refusals_.made, 5);
}

TEST_F(RefusedHandshakeTest, ACallWithoutADeadlineComesAgainForAWhile) {
  Start(3, milliseconds(1));
  EXPECT_EQ(CallOnce("server:1", {}), absl::OkStatus());
  EXPECT_EQ(refusals_.made, 3);
}

TEST_F(RefusedHandshakeTest, AServerOfASetIsComeBackToAlthoughAnotherAddressOfItFails) {
  Start(3, milliseconds(1));
  EXPECT_EQ(CallOnce("static:server:1|nobody:1", minutes(10)), absl::OkStatus());
  EXPECT_EQ(refusals_.made, 3);
}

// Eight connections of one host at a server that has room for two. Some are refused, and some make
// way before they have said anything.
TEST_F(RefusedHandshakeTest, EachCallOfAStormEndsWell) {
  StartServer(
      {.address = "server:1", .handshakes = {.handshakes_per_source = 2, .offers_per_source = 1}},
      {.use_bootstrap = &bootstrap_});
  client_runtime_ = StartRuntime({.executors = 8, .use_bootstrap = &bootstrap_});
  Channel channel(*client_runtime_, "server:1");
  testing::Testing::Stub stub(channel);
  const auto call = [&]() -> Task<absl::Status> {
    co_return (co_await stub.Echo({}, {.deadline = minutes(10)})).status();
  };
  std::vector<JoinHandle<absl::Status>> calls;
  for (int executor = 0; executor < 8; ++executor) {
    calls.push_back(client_runtime_->Spawn(call(), executor));
  }
  for (JoinHandle<absl::Status>& each : calls) EXPECT_EQ(each.Join(), absl::OkStatus());
}

// As an older server does.
TEST_F(RefusedHandshakeTest, ARefusalWithoutATimeEndsTheCall) {
  Start(1, std::nullopt);
  const absl::Status status = CallOnce("server:1", minutes(10));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(refusals_.made, 1);
}

TEST_F(RefusedHandshakeTest, ABootstrapThatPutsOffForEverIsAskedOnce) {
  int asked = 0;
  ScriptedBootstrap bootstrap(network_, [&asked](const std::string&) -> Task<absl::Status> {
    ++asked;
    co_return WithRetryAfter(absl::UnavailableError("closed for good"), Duration::max());
  });
  client_runtime_ = StartRuntime({.use_bootstrap = &bootstrap});
  EXPECT_TRUE(absl::IsUnavailable(CallOnce("server:1", {})));
  EXPECT_EQ(asked, 1);
  client_runtime_.reset();
}

TEST_F(RefusedHandshakeTest, WithoutADeadlineNobodyWaitsLongerThanConnectTimeout) {
  Start(1, kLongestComeAgain);
  const absl::Status status = CallOnce("server:1", {});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(RetryAfterOf(status), kLongestComeAgain);
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(refusals_.made, 1);
}

}  // namespace refused_handshake_test
}  // namespace verbena::internal
