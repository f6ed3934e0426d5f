// A resolver may change a channel's set at any time: no call fails because a server joins or
// leaves, and a set that is wrong, too large or told too often harms nothing.

#include "verbena/rpc/resolver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/rpc/server_set.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"

namespace verbena {
namespace resolved_set_test {

using Counts = std::vector<uint64_t>;

class ResolvedSetTest : public ServerSetTest {
 protected:
  // Two servers are in use, and stay so although the resolver gives `bad`.
  void ExpectRefused(std::vector<ResolvedServer> bad) {
    const int before = resolver_->asked;
    resolver_->Tell(*client_runtime_, std::move(bad));
    Eventually([&] { return resolver_->asked == before + 1; }, "the resolver was asked");
    EchoOften(4);
    EXPECT_EQ(Servers().size(), 2u);
  }
};

// Never waits, and says another set each time.
class BusyResolver final : public Resolver {
 public:
  explicit BusyResolver(ResolvedServer server) : server_(std::move(server)) {}
  Task<absl::StatusOr<std::vector<ResolvedServer>>> Next() override {
    server_.weight = 1 + static_cast<uint32_t>(++asked % 2);
    co_return std::vector<ResolvedServer>{server_};
  }

  std::atomic<int> asked{0};

 private:
  ResolvedServer server_;
};

TEST_F(ResolvedSetTest, AServerThatJoinsGetsCalls) {
  StartServers(2);
  StartResolved({Resolved(0)});
  EchoOften(4);
  resolver_->Tell(*client_runtime_, ResolvedAll());
  AwaitReady(2);
  TakeEchoes();
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{5, 5}));
}

TEST_F(ResolvedSetTest, AServerThatLeavesFailsNoCallThatIsOnIt) {
  StartServers(2);
  StartResolved({Resolved(0)});
  EchoOften(1);
  JoinHandle<absl::Status> held =
      client_runtime_->Spawn([](testing::Testing::Stub& stub) -> Task<absl::Status> {
        co_return (co_await stub.Linger(testing::Empty())).status();
      }(*stub_));
  EXPECT_EQ(Run(members_[0]->service.lingering.Until(1)), absl::OkStatus()) << "the handler runs";
  resolver_->Tell(*client_runtime_, std::vector<ResolvedServer>{Resolved(1)});
  Eventually(
      [&] {
        const std::vector<ChannelServer> servers = Servers();
        return servers.size() == 1 && servers[0].server.addresses[0] == Address(1) &&
               servers[0].state == ChannelServer::State::kReady;
      },
      "the other server has taken its place");
  TakeEchoes();
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (Counts{0, 10}));
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links, 2u) << "the old link has a call left";
  members_[0]->service.let_go = true;
  EXPECT_EQ(held.Join(), absl::OkStatus());
  Eventually([&] { return client_runtime_->endpoint_stats(0).links == 1; }, "the old link is gone");
}

// Another channel's calls go on, too.
TEST_F(ResolvedSetTest, AServerThatLeavesStaysConnectedForOthers) {
  StartServers(2);
  StartResolved(ResolvedAll());
  EchoOften(1);
  AwaitReady(2);
  Channel other(*client_runtime_, Address(0));
  ASSERT_EQ(Run(other.Connect()), absl::OkStatus());
  resolver_->Tell(*client_runtime_, std::vector<ResolvedServer>{Resolved(1)});
  AwaitServers([](const auto& servers) { return servers.size() == 1; });
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links, 2u);
}

TEST_F(ResolvedSetTest, SetsThatGrowAndShrinkKeepTheirServersApart) {
  StartServers(4);
  StartResolved(ResolvedAll(), {.balancing = Balancing::kRouteKey});
  EchoOften(1);
  AwaitReady(4);
  for (const std::vector<int>& set :
       std::vector<std::vector<int>>{{3}, {3, 0}, {2, 1, 0, 3}, {1}}) {
    std::vector<ResolvedServer> servers;
    for (int each : set) servers.push_back(Resolved(each));
    resolver_->Tell(*client_runtime_, servers);
    AwaitServers([&](const auto& servers) { return servers.size() == set.size(); });
    AwaitReady(set.size());
    TakeEchoes();
    EchoOften(12);
    const Counts echoes = TakeEchoes();
    for (int each : set) EXPECT_EQ(echoes[each], 12 / set.size()) << "server " << each;
  }
}

TEST_F(ResolvedSetTest, AnEmptySetFailsCallsAndThoseThatWaitGoOnWithTheFirstServer) {
  StartServers(1);
  StartResolved({});
  const absl::Status status = Run(Echo());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  JoinHandle<absl::Status> waits = client_runtime_->Spawn(Echo({.wait_for_ready = true}));
  // The first one waits where the second one has gone through already.
  EXPECT_FALSE(Run(Echo()).ok());
  resolver_->Tell(*client_runtime_, ResolvedAll());
  EXPECT_EQ(waits.Join(), absl::OkStatus());
}

TEST_F(ResolvedSetTest, TheLastGoodSetStaysWhileTheResolverFails) {
  StartServers(2);
  StartResolved(ResolvedAll());
  EchoOften(1);
  AwaitReady(2);
  const int asked = resolver_->asked;
  resolver_->Tell(*client_runtime_, absl::UnavailableError("the directory is down"));
  Eventually([&] { return resolver_->asked == asked + 1; }, "the resolver was asked");
  EchoOften(4);
  // Each of these breaks a bound, or names a server twice.
  ResolvedServer heavy = Resolved(0);
  heavy.weight = ResolvedServer::kMaxWeight + 1;
  ExpectRefused({heavy});
  ExpectRefused({ResolvedServer{}});
  ExpectRefused({Resolved(0), Resolved(0)});
}

TEST_F(ResolvedSetTest, ASetOfTooManyServersOrWithALongTextIsRefused) {
  StartServers(2);
  StartResolved(ResolvedAll());
  EchoOften(1);
  AwaitReady(2);
  ResolvedServer wordy = Resolved(0);
  wordy.name = std::string(256, 'x');
  std::vector<ResolvedServer> crowd(Resolver::kMaxServers + 1, Resolved(0));
  for (size_t i = 0; i < crowd.size(); ++i) crowd[i].name = std::to_string(i);
  ExpectRefused({wordy});
  ExpectRefused(crowd);
}

TEST_F(ResolvedSetTest, TheResolverHearsThatAServerCannotBeReached) {
  StartServers(2);
  StartResolved(ResolvedAll());
  EchoOften(1);
  AwaitReady(2);
  StopServer(0);
  Eventually([&] { return resolver_->refreshed > 0; }, "the resolver was told");
}

TEST_F(ResolvedSetTest, AResolverOfTwoChannelsAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  StartServers(1);
  StartResolved(ResolvedAll());
  EXPECT_DEATH(Channel(*client_runtime_, "again", {.resolver = resolver_}),
               "resolver of again serves another channel already");
}

TEST_F(ResolvedSetTest, EveryExecutorHearsOfTheSet) {
  StartServers(2);
  StartResolved({Resolved(0)}, {}, {.executors = 2});
  for (int executor : {0, 1}) ASSERT_EQ(Run(Echo(), executor), absl::OkStatus());
  resolver_->Tell(*client_runtime_, std::vector<ResolvedServer>{Resolved(1)});
  for (int executor : {0, 1}) {
    Eventually(
        [&] {
          const std::vector<ChannelServer> servers = Servers(executor);
          return servers.size() == 1 && servers[0].server.name == Address(1);
        },
        "the executor knows the new set");
    ASSERT_EQ(Run(Echo(), executor), absl::OkStatus());
  }
}

TEST_F(ResolvedSetTest, ASetWithMoreServersThanTheBoundIsRefused) {
  StartServers(1);
  StartResolved(ResolvedAll());
  EchoOften(1);
  const int asked = resolver_->asked;
  resolver_->Tell(*client_runtime_, std::vector<ResolvedServer>(100'000, Resolved(0)));
  Eventually([&] { return resolver_->asked == asked + 1; }, "the resolver was asked");
  EchoOften(4);
  EXPECT_EQ(Servers().size(), 1u);
}

TEST_F(ResolvedSetTest, TextsOfAResolverAreBounded) {
  StartServers(1);
  resolver_ = std::make_shared<FakeResolver>();
  StartClient("the set", {.resolver = resolver_});
  resolver_->Tell(*client_runtime_, absl::UnavailableError(std::string(size_t{1} << 20, 'x')));
  const absl::Status status = Run(Echo());
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_LT(status.message().size(), 2048u);
  ResolvedServer odd = Resolved(0);
  odd.name = "a\nb";
  resolver_->Tell(*client_runtime_, std::vector<ResolvedServer>{odd});
  Eventually([&] { return Run(Echo()).message().find("printable ASCII") != std::string::npos; },
             "the name is refused");
}

TEST_F(ResolvedSetTest, ASetThatFlapsSettlesOnItsLastState) {
  StartServers(3);
  StartResolved(ResolvedAll(), {}, {.executors = 2});
  for (int executor : {0, 1}) ASSERT_EQ(Run(Echo(), executor), absl::OkStatus());
  for (int i = 0; i < 20; ++i) {
    const int asked = resolver_->asked;
    resolver_->Tell(*client_runtime_,
                    i % 2 == 0 ? std::vector<ResolvedServer>{Resolved(0)} : ResolvedAll());
    Eventually([&] { return resolver_->asked > asked; }, "the resolver was asked");
    EXPECT_EQ(Run(Echo(), i % 2), absl::OkStatus());
  }
  for (int executor : {0, 1}) {
    AwaitReady(3, executor);
    EXPECT_EQ(Servers(executor).size(), 3u);
  }
  Eventually([&] { return client_runtime_->endpoint_stats(0).links == 3; }, "the others are gone");
}

TEST_F(ResolvedSetTest, AResolverThatNeverWaitsIsAskedAtMostTenTimesASecond) {
  testing::FakeClock clock;
  RuntimeOptions runtime;
  runtime.clock = &clock;
  runtime.limits.ping_interval = std::chrono::hours(1000);
  runtime.limits.connect_timeout = std::chrono::hours(1000);
  runtime.limits.idle_timeout = Duration::zero();
  StartServers(1);
  const auto resolver = std::make_shared<BusyResolver>(Resolved(0));
  StartClient("the set", {.resolver = resolver}, std::move(runtime));
  EchoOften(20);
  EXPECT_EQ(resolver->asked, 1);
  clock.Advance(*client_runtime_, std::chrono::milliseconds(99));
  EXPECT_EQ(resolver->asked, 1);
  clock.Advance(*client_runtime_, std::chrono::milliseconds(1));
  EXPECT_EQ(resolver->asked, 2);
  clock.Run();
  channel_.reset();
  client_runtime_.reset();
}

}  // namespace resolved_set_test
}  // namespace verbena
