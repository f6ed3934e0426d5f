// A channel that stands for a set of servers sends each call to one that is ready, as its policy
// says. No call fails because a server restarts; if none can be reached, calls fail at once or
// wait.

#include "verbena/rpc/policy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/rpc/server_set.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/coro/context.h"

namespace verbena {
namespace balancing_test {

using State = ChannelServer::State;
using Counts = std::vector<uint64_t>;

using BalancingTest = ServerSetTest;

TEST_F(BalancingTest, CallsTakeTurnsOverTheServersOfAStaticTarget) {
  StartServers(3);
  StartClient(StaticTarget());
  ASSERT_EQ(Run(Echo()), absl::OkStatus());
  AwaitReady(3);
  TakeEchoes();
  EchoOften(30);
  EXPECT_EQ(TakeEchoes(), (Counts{10, 10, 10}));
}

TEST_F(BalancingTest, AServerThatShutsDownFailsNoCall) {
  StartServers(3);
  StartClient(StaticTarget());
  EchoOften(1);
  AwaitReady(3);
  StopServer(1);
  TakeEchoes();
  EchoOften(30);
  const Counts echoes = TakeEchoes();
  EXPECT_EQ(echoes[0] + echoes[2], 30u);
  StartServer(1);
  AwaitReady(3);
  TakeEchoes();
  EchoOften(30);
  EXPECT_EQ(TakeEchoes(), (Counts{10, 10, 10}));
}

TEST_F(BalancingTest, PickFirstTakesTheFirstThatIsThereAndComesBackToIt) {
  testing::FakeClock clock;
  RuntimeOptions runtime;
  runtime.clock = &clock;
  StartServers(2);
  StartClient(StaticTarget(), {.balancing = Balancing::kPickFirst}, std::move(runtime));
  // While the clock stands, the first one is not late.
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{10, 0}));
  EXPECT_EQ(Servers()[1].state, State::kIdle);
  clock.Run();
  StopServer(0);
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{0, 10}));
  StartServer(0);
  // The first one is back.
  AwaitServers([](const auto& servers) { return servers[1].state == State::kIdle; });
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{10, 0}));
  channel_.reset();
  client_runtime_.reset();
}

// Its connection may be ready already.
TEST_F(BalancingTest, AServerThatAnotherChannelIsConnectedWithIsReadyAtOnce) {
  StartServers(1);
  client_runtime_ = StartRuntime();
  Channel other(*client_runtime_, Address(0));
  ASSERT_EQ(Run(other.Connect()), absl::OkStatus());
  StartClient(StaticTarget());
  EchoOften(2);
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_opened, 1u);
}

TEST_F(BalancingTest, WeightsSayHowOftenAServerIsCalled) {
  StartServers(2);
  StartResolved({Resolved(0, 30), Resolved(1, 10)}, {.balancing = Balancing::kWeighted});
  EchoOften(1);
  AwaitReady(2);
  TakeEchoes();
  EchoOften(40);
  EXPECT_EQ(TakeEchoes(), (Counts{30, 10}));
}

TEST_F(BalancingTest, TheServerWithFewerCallsInFlightIsCalled) {
  StartServers(2);
  StartResolved(ResolvedAll(), {.balancing = Balancing::kLeastInFlight});
  EchoOften(1);
  AwaitReady(2);
  JoinHandle<absl::Status> held =
      client_runtime_->Spawn([](testing::Testing::Stub& stub) -> Task<absl::Status> {
        co_return (co_await stub.Linger(testing::Empty())).status();
      }(*stub_));
  const auto lingers = [&](int index) { return members_[index]->service.lingering == 1; };
  Eventually([&] { return lingers(0) || lingers(1); }, "the handler runs");
  const int busy = lingers(0) ? 0 : 1;
  TakeEchoes();
  EchoOften(20);
  EXPECT_EQ(TakeEchoes()[1 - busy], 20u);
  for (const auto& each : members_) each->service.let_go = true;
  EXPECT_EQ(held.Join(), absl::OkStatus());
}

TEST_F(BalancingTest, AKeyStaysWithItsServerUntilThatLeaves) {
  StartServers(3);
  StartResolved(ResolvedAll(), {.balancing = Balancing::kRouteKey});
  EchoOften(1);
  AwaitReady(3);
  TakeEchoes();
  const auto server_of = [&](uint64_t key) {
    EchoOften(2, key);
    const Counts echoes = TakeEchoes();
    for (size_t i = 0; i < echoes.size(); ++i) {
      if (echoes[i] == 2) return static_cast<int>(i);
    }
    ADD_FAILURE() << "the calls of a key went to several servers";
    return -1;
  };
  std::vector<int> before;
  for (uint64_t key = 0; key < 40; ++key) before.push_back(server_of(key));
  EXPECT_EQ((std::set<int>(before.begin(), before.end())), (std::set<int>{0, 1, 2}));
  resolver_->Tell(*client_runtime_, std::vector<ResolvedServer>{Resolved(0), Resolved(2)});
  AwaitServers([](const auto& servers) { return servers.size() == 2; });
  for (uint64_t key = 0; key < 40; ++key) {
    const int now = server_of(key);
    if (before[key] != 1) {
      EXPECT_EQ(now, before[key]) << "key " << key;
    }
  }
  // Calls without a key take turns.
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{5, 0, 5}));
}

TEST_F(BalancingTest, ServersOfTheOwnZoneComeFirst) {
  StartServers(3);
  StartResolved({Resolved(0, 1, "a"), Resolved(1, 1, "b"), Resolved(2, 1, "b")}, {.zone = "b"});
  EchoOften(1);
  AwaitReady(3);
  TakeEchoes();
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{0, 5, 5}));
  StopServer(1);
  StopServer(2);
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{10, 0, 0}));
}

TEST_F(BalancingTest, TheNextAddressOfAServerIsTriedIfNobodyAnswersAtTheFirst) {
  StartServers(2);
  const std::string gone = Address(1);
  StopServer(1);
  StartClient("static:" + gone + "|" + Address(0));
  EchoOften(2);
  EXPECT_EQ(Servers().size(), 1u);
  EXPECT_EQ(TakeEchoes(), (Counts{2, 0}));
}

TEST_F(BalancingTest, WithoutAServerThatCanBeReachedCallsFailAtOnceAndSayWhy) {
  StartServers(2);
  StartClient(StaticTarget());
  EchoOften(1);
  AwaitReady(2);
  StopServer(0);
  StopServer(1);
  AwaitServers([](const auto& servers) {
    return servers[0].state == State::kFailing && servers[1].state == State::kFailing;
  });
  const absl::Status status = Run(Echo());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_NE(status.message().find("none of the 2 servers of static:"), std::string::npos) << status;
  EXPECT_NE(status.message().find(Address(0)), std::string::npos) << status;
  const std::vector<ChannelServer> servers = Servers();
  EXPECT_GT(servers[0].failures, 0u);
  EXPECT_FALSE(servers[0].last_error.ok());
}

TEST_F(BalancingTest, ACallThatWaitsForAServerEndsAtItsDeadline) {
  StartServers(1);
  StartResolved({});
  const absl::Status status =
      Run(Echo({.deadline = std::chrono::milliseconds(20), .wait_for_ready = true}));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(BalancingTest, ACallToOneServerWaitsForItToo) {
  StartServers(1);
  StopServer(0);
  StartClient(Address(0));
  const absl::Status status = Run(Echo());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  JoinHandle<absl::Status> waits = client_runtime_->Spawn(Echo({.wait_for_ready = true}));
  JoinHandle<absl::Status> with_options =
      client_runtime_->Spawn(Echo({.priority = Priority::kControl, .wait_for_ready = true}));
  // Attempts fail while the calls wait.
  AwaitServers([](const auto& servers) { return servers[0].failures >= 2; });
  StartServer(0);
  EXPECT_EQ(waits.Join(), absl::OkStatus());
  EXPECT_EQ(with_options.Join(), absl::OkStatus());
}

TEST_F(BalancingTest, AServerWhoseLinksDoNotLastCountsAsFailed) {
  testing::FakeClock clock;
  RuntimeOptions runtime;
  runtime.clock = &clock;
  runtime.limits.ping_interval = std::chrono::hours(1000);
  runtime.limits.connect_timeout = std::chrono::hours(1000);
  runtime.limits.idle_timeout = Duration::zero();
  StartServers(1);
  StartClient(StaticTarget(), {}, std::move(runtime));
  const auto await = [&](Duration step, auto condition) {
    while (!condition()) clock.Advance(*client_runtime_, step);
  };
  const auto is = [this](State state) { return Servers()[0].state == state; };
  const auto is_ready = [&] { return is(State::kReady); };
  EchoOften(1);
  StopServer(0);
  await(Duration::zero(), [&] { return !is_ready(); });  // the link is lost
  EXPECT_TRUE(is(State::kConnecting)) << "it may restart";
  StartServer(0);
  await(std::chrono::milliseconds(50), is_ready);
  StopServer(0);
  await(Duration::zero(), [&] { return is(State::kFailing); });
  const auto says_why = [&] {
    const absl::Status status = Run(Echo());
    return status.message().find("lost 2 links soon after they opened") != std::string::npos;
  };
  await(Duration::zero(), says_why);
  StartServer(0);
  await(std::chrono::milliseconds(50), is_ready);
  EchoOften(1);
  clock.Run();
  channel_.reset();
  client_runtime_.reset();
}

TEST_F(BalancingTest, TheLogTellsOnceOfAServerThatCannotBeReachedUntilItIsReadyAgain) {
  StartServers(1);
  StopServer(0);
  CapturedLog log;
  int warnings = 0;
  const auto count = [&] {
    for (const std::string& line : log.Take()) {
      if (line.find("of a set cannot be reached: ") != std::string::npos) ++warnings;
    }
    return warnings;
  };
  StartClient(StaticTarget());
  EXPECT_FALSE(Run(Echo()).ok());
  AwaitServers([](const auto& servers) { return servers[0].failures >= 3; });
  EXPECT_EQ(count(), 1);
  StartServer(0);
  AwaitReady(1);
  StopServer(0);
  Eventually([&] { return count() >= 2; }, "the log tells of it again");
  EXPECT_EQ(warnings, 2);
}

TEST_F(BalancingTest, AStreamStaysWithTheServerThatItBeganOn) {
  StartServers(2);
  StartClient(StaticTarget());
  const auto talk = [this](int items) -> Task<absl::Status> {
    auto stream = streams_->Echo();
    for (int i = 0; i < items; ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i)));
      testing::StreamItem item;
      if (!co_await stream.Read(item)) break;
      EXPECT_EQ(item.number(), static_cast<uint64_t>(i));
      // Calls between take turns; the stream does not.
      VERBENA_CO_RETURN_IF_ERROR(co_await Echo());
    }
    co_return co_await stream.Finish();
  };
  // The first one begins before a server is ready.
  EXPECT_EQ(Run(talk(6)), absl::OkStatus());
  AwaitReady(2);
  EXPECT_EQ(Run(talk(6)), absl::OkStatus());
}

TEST_F(BalancingTest, CallsWithOptionsFindAServerToo) {
  StartServers(2);
  StartClient(StaticTarget());
  CallInfo info;
  const Metadata metadata = {{"tenant", "a"}};
  EXPECT_EQ(Run(Echo({.info = &info, .metadata = metadata})), absl::OkStatus());
  EXPECT_GT(info.request_bytes, 0u);
  AwaitReady(2);
  EXPECT_EQ(Run(Echo({.metadata = metadata, .inherit = Inherit::kNothing})), absl::OkStatus());
}

TEST_F(BalancingTest, MemoryServesForEachServerAndLoansForNone) {
  StartServers(2);
  StartClient(StaticTarget());
  const absl::StatusOr<Buffer> buffer = Run(channel_->AllocateBuffer(4096));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_TRUE(Run(channel_->DeviceName()).ok());
  const absl::Status lent = Run(channel_->Lend(buffer->view(), LeaseAccess::kRead)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lent)) << lent;
  EXPECT_EQ(OutcomeOf(lent), Outcome::kNotExecuted);
}

TEST_F(BalancingTest, ATargetThatDoesNotParseFailsTheFirstCall) {
  StartServers(1);
  StartClient("static:" + Address(0) + ",b:port");
  for (bool waits : {false, true}) {
    const absl::Status status = Run(Echo({.wait_for_ready = waits}));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_NE(status.message().find("\"port\" is no port"), std::string::npos) << status;
  }
}

TEST_F(BalancingTest, AChannelMayEndWhileItConnectsAndWhileItsResolverIsAsked) {
  StartServers(2);
  client_runtime_ = StartRuntime();
  for (int i = 0; i < 20; ++i) {
    StartClient(StaticTarget());
    (void)Run(WithDeadline(channel_->Connect(), Clock::Real().Now()));
    StartResolved(ResolvedAll());
    (void)Run(WithDeadline(channel_->Connect(), Clock::Real().Now()));
  }
  channel_.reset();
  Eventually([&] { return client_runtime_->endpoint_stats(0).links == 0; }, "no link is left");
}

// Nothing else would end a wait that no cancellation reaches.
TEST_F(BalancingTest, ARuntimeThatEndsWakesCallsThatWaitForAServer) {
  StartServers(1);
  StartResolved({});
  EXPECT_FALSE(Run(Echo()).ok());
  JoinHandle<absl::Status> waits =
      client_runtime_->Spawn(Echo({.inherit = Inherit::kNothing, .wait_for_ready = true}));
  // The first one waits where this one has gone through.
  EXPECT_FALSE(Run(Echo()).ok());
  client_runtime_.reset();
  const absl::Status status = waits.Join();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted) << status;
}

TEST_F(BalancingTest, ARuntimeMayEndBeforeItsChannel) {
  StartServers(2);
  StartResolved(ResolvedAll(), {}, {.executors = 2});
  for (int executor : {0, 1}) ASSERT_EQ(Run(Echo(), executor), absl::OkStatus());
  client_runtime_.reset();
  channel_.reset();
}

}  // namespace balancing_test
}  // namespace verbena
