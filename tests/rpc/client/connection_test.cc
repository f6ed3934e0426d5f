// A connection lives as long as a channel uses it, and an attempt to connect ends for each of its
// callers, however the attempt, the channel or the runtime ends.

#include "verbena/rpc/client/connection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/connect/scripted_bootstrap.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/executor/run_on.h"

namespace verbena::internal {
namespace connection_test {

// A bootstrap's script that throws.
Task<absl::Status> Throw(const std::string&) {
  throw std::runtime_error("out of cheese");
  co_return absl::OkStatus();
}

class ConnectionTest : public RpcTest {
 protected:
  static constexpr Duration kPatience = std::chrono::seconds(20);

  uint32_t ClientLinks() { return client_runtime_->endpoint_stats(0).links; }
  uint32_t ServerLinks() { return server_runtime_->endpoint_stats(0).links; }
};

TEST_F(ConnectionTest, AnAttemptThatThrowsEndsWithAStatusForEveryCaller) {
  LocalNetwork network;
  ScriptedBootstrap bootstrap(network, Throw);
  const std::unique_ptr<Runtime> runtime = StartRuntime({.use_bootstrap = &bootstrap});
  Channel channel(*runtime, "nowhere:1");
  for (int i = 0; i < 2; ++i) {
    const absl::Status status =
        runtime->BlockOn(WithDeadline(channel.Connect(), Clock::Real().Now() + kPatience));
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_NE(status.message().find("out of cheese"), std::string::npos) << status;
  }
}

TEST_F(ConnectionTest, AChannelThatReachesNobodySaysThatNothingWasSent) {
  LocalNetwork network;
  ScriptedBootstrap bootstrap(network, Throw);
  const std::unique_ptr<Runtime> runtime = StartRuntime({.use_bootstrap = &bootstrap});
  Channel channel(*runtime, "nowhere:1");
  EXPECT_EQ(OutcomeOf(runtime->BlockOn(channel.Connect())), Outcome::kNotExecuted);
  EXPECT_EQ(OutcomeOf(runtime->BlockOn(channel.DeviceName()).status()), Outcome::kNotExecuted);
  EXPECT_EQ(OutcomeOf(runtime->BlockOn(channel.Lend({}, LeaseAccess::kRead)).status()),
            Outcome::kNotExecuted);
}

TEST_F(ConnectionTest, MemoryThatCannotBeLentWasNotSent) {
  StartBoth();
  const absl::Status status = Run(channel_->Lend({}, LeaseAccess::kRead)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(ConnectionTest, AConnectTimeoutWithoutEndConnects) {
  StartServer();
  RuntimeOptions options;
  options.limits.connect_timeout = Duration::max();
  StartClient(std::move(options));
  EXPECT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
}

TEST_F(ConnectionTest, LinksCloseWithTheLastChannelThatUsesThem) {
  StartBoth();
  auto other = std::make_unique<Channel>(*client_runtime_, server_->address());
  ASSERT_EQ(Run(EchoOnce(1, "one link")), absl::OkStatus());
  ASSERT_EQ(Run(other->Connect()), absl::OkStatus());
  EXPECT_EQ(ClientLinks(), 1u);
  other.reset();
  EXPECT_EQ(Run(EchoOnce(2, "the other channel still uses it")), absl::OkStatus());
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_opened, 1u);
  stub_.reset();
  channel_.reset();
  Eventually([&] { return ClientLinks() == 0 && ServerLinks() == 0; }, "the link is closed");
}

TEST_F(ConnectionTest, AChannelThatGoesWhileItConnectsLeavesNoLink) {
  StartServer();
  client_runtime_ = StartRuntime();
  for (int i = 0; i < 20; ++i) {
    Channel channel(*client_runtime_, server_->address());
    // Gives up at once; the attempt goes on until the channel ends.
    (void)Run(WithDeadline(channel.Connect(), Clock::Real().Now()));
  }
  Eventually([&] { return ClientLinks() == 0 && ServerLinks() == 0; }, "no link is left");
}

// Connects a channel on every executor, and keeps it until the runtime cancels the task.
Task<void> KeepAChannel(Runtime& runtime, std::string target, std::atomic<int>& connected) {
  Channel channel(runtime, std::move(target));
  for (int i = 0; i < runtime.executors(); ++i) {
    EXPECT_EQ(co_await RunOn(runtime.executor(i), channel.Connect()), absl::OkStatus());
  }
  ++connected;
  (void)co_await SleepUntil(kNever);
}

TEST_F(ConnectionTest, AChannelMayEndWithATaskThatItsRuntimeCancels) {
  StartServer();
  for (int executors : {1, 2}) {
    SCOPED_TRACE(executors);
    client_runtime_ = StartRuntime({.executors = executors});
    std::atomic<int> connected = 0;
    for (int i = 0; i < executors; ++i) {
      client_runtime_->Spawn(KeepAChannel(*client_runtime_, server_->address(), connected), i);
    }
    Eventually([&] { return connected == executors; }, "every task has connected its channel");
    client_runtime_.reset();
  }
}

Task<void> ConnectWhenCancelled(Channel& channel, Executor& there, absl::Status& connected) {
  (void)co_await SleepUntil(kNever);
  connected = co_await RunOn(there, channel.Connect());
}

TEST_F(ConnectionTest, AnExecutorWhoseRuntimeEndsConnectsNoMore) {
  StartServer();
  client_runtime_ = StartRuntime({.executors = 2});
  Channel channel(*client_runtime_, server_->address());
  absl::Status connected;
  client_runtime_->Spawn(ConnectWhenCancelled(channel, client_runtime_->executor(0), connected), 1);
  (void)Run(Pause(), 1);
  client_runtime_.reset();
  EXPECT_FALSE(connected.ok());
}

// The thread that drops the channel is none of the runtime's.
TEST_F(ConnectionTest, AChannelMayEndWhileItsRuntimeDoes) {
  StartServer();
  for (int i = 0; i < 30; ++i) {
    client_runtime_ = StartRuntime();
    auto channel = std::make_unique<Channel>(*client_runtime_, server_->address());
    ASSERT_EQ(Run(channel->Connect()), absl::OkStatus());
    std::latch both(2);
    std::thread dropper([&] {
      both.arrive_and_wait();
      channel.reset();
    });
    both.arrive_and_wait();
    client_runtime_.reset();
    dropper.join();
  }
}

TEST_F(ConnectionTest, AServerPlacesLinksOnItsLeastLoadedExecutor) {
  StartServer({}, {.executors = 3});
  client_runtime_ = StartRuntime({.executors = 3});
  Channel channel(*client_runtime_, server_->address());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Run(channel.Connect(), i), absl::OkStatus());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(server_runtime_->endpoint_stats(i).links, 1u) << "executor " << i;
  }
  const Channel third(*client_runtime_, server_->address(), {.server_executor = 2});
  ASSERT_EQ(Run(const_cast<Channel&>(third).Connect()), absl::OkStatus());
  EXPECT_EQ(server_runtime_->endpoint_stats(2).links, 2u);
}

TEST_F(ConnectionTest, AServerWhoseBoundIsZeroDoesNotStart) {
  server_runtime_ = StartRuntime();
  const absl::Status status =
      Server::Start(*server_runtime_, {&service_}, {.handshakes = {.offers = 0}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("handshakes.offers is 0"), std::string::npos) << status;
}

TEST_F(ConnectionTest, AConnectionThatClosesWhileItConnectsEndsTheWaits) {
  LocalNetwork network;
  LocalBootstrap listening(network);
  // On the client's executor.
  Event go;
  int attempts = 0;
  // Connects once, when it is told to.
  ScriptedBootstrap connecting(network, [&](const std::string&) -> Task<absl::Status> {
    if (++attempts > 1) co_return absl::UnavailableError("another attempt");
    co_return co_await go.Wait();
  });
  StartServer({.address = "server"}, {.use_bootstrap = &listening});
  client_runtime_ = StartRuntime({.use_bootstrap = &connecting});
  const auto run = [&]() -> Task<absl::Status> {
    Connection connection(CoreOf(*client_runtime_).shard(0), server_->address(), {});
    absl::StatusOr<ClientSession*> session;
    const Deadline deadline(Clock::Real().Now() + std::chrono::seconds(10));
    const auto wait = [&]() -> Task<void> { session = co_await connection.Session(deadline); };
    TaskScope tasks(co_await CurrentContext());
    tasks.Spawn(wait());
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    connection.Close();
    co_await tasks.Join();
    go.Set();
    // A later call finds it closed, too.
    const absl::Status ready = co_await connection.Ready();
    EXPECT_EQ(ready.code(), absl::StatusCode::kUnavailable) << ready;
    while (!connection.ended()) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    co_return session.status();
  };
  const absl::Status status = Run(run());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(attempts, 1);
  Eventually([&] { return ClientLinks() == 0 && ServerLinks() == 0; }, "no link is left");
  // Before their bootstraps.
  client_runtime_.reset();
  server_.reset();
  server_runtime_.reset();
}

// As a call does. Otherwise each call with a payload fails before it has begun.
TEST_F(ConnectionTest, AWaitForMemoryWaitsForAServerIfItsCallDoes) {
  LocalNetwork network;
  LocalBootstrap listening(network);
  std::atomic<int> refused{0};
  // The first attempts to connect are refused, as by a server that starts anew.
  ScriptedBootstrap connecting(network, [&](const std::string&) -> Task<absl::Status> {
    if (refused == 2) co_return absl::OkStatus();
    ++refused;
    co_return absl::UnavailableError("not yet");
  });
  StartServer({.address = "server:1"}, {.use_bootstrap = &listening});
  client_runtime_ = StartRuntime({.use_bootstrap = &connecting});
  const auto allocate = [](Channel& channel, CallOptions options) -> Task<absl::Status> {
    co_return (co_await channel.AllocateBuffer(1000, options)).status();
  };
  const auto connect = [](Channel& channel, CallOptions options) -> Task<absl::Status> {
    co_return co_await channel.Connect(options);
  };
  for (const std::string target : {"server:1", "static:server:1"}) {
    SCOPED_TRACE(target);
    for (const bool allocates : {true, false}) {
      SCOPED_TRACE(allocates);
      const auto run = [&](CallOptions options) {
        Channel channel(*client_runtime_, target);
        return Run(allocates ? allocate(channel, std::move(options))
                             : connect(channel, std::move(options)));
      };
      refused = 0;
      const absl::Status status = run({});
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
      refused = 0;
      EXPECT_EQ(run({.wait_for_ready = true}), absl::OkStatus());
      Eventually([this] { return ClientLinks() == 0; }, "the channel's link closes");
    }
  }
  // Nobody will answer in time.
  Channel channel(*client_runtime_, "nowhere:1");
  const absl::Status late =
      Run(allocate(channel, {.deadline = std::chrono::milliseconds(1), .wait_for_ready = true}));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  StopAll();
}

TEST_F(ConnectionTest, TheAttemptOfAConnectionThatClosesEndsAndTriesNoOtherAddress) {
  // On the client's executor.
  Event go;
  int attempts = 0;
  // Nobody answers, and says so only when the test tells it to.
  LocalNetwork network;
  ScriptedBootstrap silent(network, [&](const std::string&) -> Task<absl::Status> {
    ++attempts;
    VERBENA_CO_RETURN_IF_ERROR(co_await go.Wait());
    co_return absl::UnavailableError("nobody answers");
  });
  testing::FakeClock clock;  // stands still, so that no other address gets its turn
  client_runtime_ = StartRuntime({.use_bootstrap = &silent, .clock = &clock});
  for (const bool drains : {false, true}) {
    SCOPED_TRACE(drains);
    attempts = 0;
    go.Reset();
    bool ended = false;
    const auto run = [&]() -> Task<absl::Status> {
      Connection connection(CoreOf(*client_runtime_).shard(0), "a:1", {}, {"b:1", "c:1"});
      TaskScope tasks(co_await CurrentContext());
      tasks.Spawn([&]() -> Task<void> { (void)co_await connection.Ready(); });
      while (attempts == 0) (void)co_await Yield();
      EXPECT_TRUE(connection.connecting());
      if (drains) {
        connection.Drain();
      } else {
        connection.Close();
      }
      for (int i = 0; i < 1000 && !connection.ended(); ++i) (void)co_await Yield();
      ended = connection.ended();
      go.Set();
      while (!connection.ended()) (void)co_await Yield();
      co_await tasks.Join();
      co_return absl::OkStatus();
    };
    EXPECT_EQ(Run(run()), absl::OkStatus());
    EXPECT_TRUE(ended) << "though nobody answered";
    EXPECT_EQ(attempts, 1);
  }
  clock.Run();
  client_runtime_.reset();
}

using ConnectionDeathTest = ConnectionTest;

TEST_F(ConnectionDeathTest, ClosingAConnectionThatHasUsersAborts) {
  StartBoth();
  EXPECT_DEATH(
      {
        Connection connection(CoreOf(*client_runtime_).shard(0), "nowhere:1", {});
        connection.AddUser();
        connection.Close();
      },
      "users 1 of nowhere:1");
}

TEST_F(ConnectionDeathTest, AChannelThatAsksForAnExecutorByNumberAndByKeyAborts) {
  StartBoth();
  EXPECT_DEATH(Channel(*client_runtime_, "nowhere:1", {.server_executor = 1, .server_key = 2}),
               "server_executor is 1 and server_key is 2: set at most one of them");
}

TEST_F(ConnectionDeathTest, AnInterceptorThatIsNullAborts) {
  StartBoth();
  EXPECT_DEATH(Channel(*client_runtime_, "nowhere:1", {.interceptors = {nullptr}}),
               "one of ChannelOptions::interceptors is null");
}

}  // namespace connection_test
}  // namespace verbena::internal
