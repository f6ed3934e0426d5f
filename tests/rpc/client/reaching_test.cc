// Which servers and which of their addresses a client tries while some cannot be reached, and how
// often. Only the test moves the time.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/rpc/server_set.h"
#include "tests/rpc/testing_service.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/picker.h"
#include "verbena/rpc/client/subchannels.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace reaching_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Names = std::vector<std::string>;

// Takes no handshake.
class RudeStream final : public MessageStream {
 public:
  Task<absl::Status> Send(std::string) override { co_return Refusal(); }
  Task<absl::StatusOr<std::string>> Receive() override { co_return Refusal(); }
  void Close() override {}
  const std::string& peer() const override { return name_; }

 private:
  static absl::Status Refusal() { return absl::PermissionDeniedError("rude"); }

  const std::string name_ = "rude";
};

// Later than the address behind it is tried.
constexpr Duration kLate = Connection::kHeadStart + milliseconds(50);

// Reaches who listens in a LocalNetwork. Nobody answers at names that begin with "silent"; those
// that begin with "late" answer after kLate; those that end with "rude" take no handshake. Others
// refuse.
class NotingBootstrap final : public Bootstrap {
 public:
  explicit NotingBootstrap(LocalNetwork& network) : local_(network) {}

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tried_.push_back(target);
    }
    if (target.starts_with("silent")) co_return co_await SleepUntil(kNever);
    if (target.starts_with("late")) VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(kLate));
    if (target.ends_with("rude")) co_return std::make_unique<RudeStream>();
    co_return co_await local_.Connect(std::move(target));
  }
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override {
    return local_.Listen(address);
  }

  // The targets of Connect() since the last call.
  Names TakeTried() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(tried_, {});
  }

 private:
  LocalBootstrap local_;
  std::mutex mutex_;
  Names tried_;
};

class ReachingTest : public RpcTest {
 protected:
  ~ReachingTest() override {
    clock_.Run();
    client_runtime_.reset();
    stub_.reset();
    StopAll();
  }

  // No link of the client ends while the test moves the clock.
  void Open(std::string target, ChannelOptions channel = {}, LinkLimits limits = {}) {
    limits.ping_interval = std::chrono::hours(1000);
    limits.idle_timeout = Duration::zero();
    client_runtime_ =
        StartRuntime({.limits = limits, .use_bootstrap = &bootstrap_, .clock = &clock_});
    channel_ = std::make_unique<Channel>(*client_runtime_, std::move(target), std::move(channel));
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }
  void Serve(const std::string& address) {
    StartServer({.address = address}, {.use_bootstrap = &server_bootstrap_});
  }
  JoinHandle<absl::Status> StartEcho(CallOptions options = {}) {
    return client_runtime_->Spawn(
        [](testing::Testing::Stub& stub, CallOptions options) -> Task<absl::Status> {
          co_return (co_await stub.Echo(testing::EchoRequest(), std::move(options))).status();
        }(*stub_, std::move(options)));
  }
  // Returns the addresses that the client tries while so much time passes.
  Names TriedWithin(Duration time) {
    clock_.Advance(*client_runtime_, time);
    return bootstrap_.TakeTried();
  }

  std::vector<ChannelServer> Servers() {
    return *Run([this]() -> Task<absl::StatusOr<std::vector<ChannelServer>>> {
      co_return channel_->Servers();
    }());
  }

  LocalNetwork network_;
  LocalBootstrap server_bootstrap_{network_, "the server"};
  NotingBootstrap bootstrap_{network_};
  testing::FakeClock clock_;
};

TEST_F(ReachingTest, AnAddressIsTriedBesideOneThatHasBeenSilentForAWhile) {
  Open("static:silent:1|silent:2|silent:3");
  JoinHandle<absl::Status> call = StartEcho();
  EXPECT_EQ(TriedWithin(Duration::zero()), Names{"silent:1"});
  EXPECT_EQ(TriedWithin(Connection::kHeadStart - milliseconds(1)), Names{});
  EXPECT_EQ(TriedWithin(milliseconds(1)), Names{"silent:2"});
  EXPECT_EQ(TriedWithin(Connection::kHeadStart), Names{"silent:3"});
  clock_.Advance(*client_runtime_, seconds(10) - 2 * Connection::kHeadStart);
  // All within one connect_timeout.
  ASSERT_TRUE(call.done());
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  for (const char* address : {"silent:1", "silent:2", "silent:3"}) {
    EXPECT_NE(status.message().find(address), std::string::npos) << status;
  }
}

TEST_F(ReachingTest, AddressesShareAShortConnectTimeout) {
  Open("static:silent:1|silent:2", {}, {.connect_timeout = milliseconds(100)});
  JoinHandle<absl::Status> call = StartEcho();
  EXPECT_EQ(TriedWithin(milliseconds(50)), (Names{"silent:1", "silent:2"}));
  clock_.Advance(*client_runtime_, milliseconds(50));
  EXPECT_FALSE(call.Join().ok());
}

TEST_F(ReachingTest, AnAddressThatRefusesIsFollowedAtOnce) {
  Open("static:refuses:1|refuses:2|silent:3");
  JoinHandle<absl::Status> call = StartEcho({.deadline = seconds(1)});
  EXPECT_EQ(TriedWithin(Duration::zero()), (Names{"refuses:1", "refuses:2", "silent:3"}));
  clock_.Advance(*client_runtime_, seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(call.Join()));
}

TEST_F(ReachingTest, AServerIsReachedAtItsSecondAddressThoughTheFirstIsSilent) {
  Serve("good");
  Open("static:silent:1|good");
  JoinHandle<absl::Status> call = StartEcho();
  ASSERT_EQ(TriedWithin(Connection::kHeadStart), (Names{"silent:1", "good"}));
  EXPECT_EQ(call.Join(), absl::OkStatus());
}

// The machine's time passes during a handshake, and by far more of the clock's.
constexpr auto kLong = std::chrono::hours(1000);

TEST_F(ReachingTest, AnAddressThatLostTheRaceIsTriedOnceTheWinnerRefuses) {
  Serve("late");
  Open("static:late|rude", {}, {.connect_timeout = kLong});
  JoinHandle<absl::Status> call = StartEcho();
  Names tried = TriedWithin(Connection::kHeadStart);
  while (!call.done()) {
    for (std::string& each : TriedWithin(milliseconds(50))) tried.push_back(std::move(each));
  }
  EXPECT_EQ(tried, (Names{"late", "rude", "late"}));
  EXPECT_EQ(call.Join(), absl::OkStatus());
}

TEST_F(ReachingTest, AnAddressThatLostTheRaceDoesNotSayWhatBecameOfTheAttempt) {
  Open("static:late-rude|silent:2", {}, {.connect_timeout = kLong});
  JoinHandle<absl::Status> call = StartEcho();
  size_t tried = TriedWithin(kLate).size();
  while (!call.done() && tried < 3) tried += TriedWithin(seconds(1)).size();
  clock_.Advance(*client_runtime_, kLong);
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("rude"), std::string::npos) << status;
}

TEST_F(ReachingTest, AfterASilentHandshakeTheNextAttemptBeginsWithTheNextAddress) {
  // They take connections, and say nothing.
  const auto first = server_bootstrap_.Listen("mute:1");
  const auto second = server_bootstrap_.Listen("mute:2");
  Open("static:mute:1|mute:2");
  JoinHandle<absl::Status> call = StartEcho();
  EXPECT_EQ(TriedWithin(Duration::zero()), Names{"mute:1"});
  Names tried;
  while (tried.empty()) tried = TriedWithin(seconds(1));
  EXPECT_EQ(tried.front(), "mute:2");
  EXPECT_TRUE(absl::IsUnavailable(call.Join()));
}

TEST_F(ReachingTest, PickFirstTriesTheNextServerWhenTheFirstIsLate) {
  Serve("good");
  Open("static:silent:1,silent:2,good", {.balancing = Balancing::kPickFirst});
  JoinHandle<absl::Status> call = StartEcho();
  EXPECT_EQ(TriedWithin(Subchannel::kPatience - milliseconds(1)), Names{"silent:1"});
  EXPECT_EQ(TriedWithin(milliseconds(1)), Names{"silent:2"});
  ASSERT_EQ(TriedWithin(Subchannel::kPatience), Names{"good"});
  EXPECT_EQ(call.Join(), absl::OkStatus());
}

TEST_F(ReachingTest, PausesGrowToTheLongestThatIsSet) {
  Open("static:refuses:1", {}, {.longest_reconnect_pause = seconds(40)});
  JoinHandle<absl::Status> call = StartEcho();
  clock_.Advance(*client_runtime_, std::chrono::hours(1));
  EXPECT_FALSE(call.Join().ok());
  bootstrap_.TakeTried();
  // 40 s, give or take a fifth.
  const size_t tried = TriedWithin(seconds(480)).size();
  EXPECT_GE(tried, 10u);
  EXPECT_LE(tried, 15u);
}

TEST_F(ReachingTest, PickFirstKnocksAtFewServersWhileOneServes) {
  Serve("good");
  Open("static:a:1,b:1,c:1,d:1,e:1,f:1,good,g:1", {.balancing = Balancing::kPickFirst});
  ASSERT_EQ(StartEcho().Join(), absl::OkStatus());
  clock_.Advance(*client_runtime_, seconds(1));
  bootstrap_.TakeTried();
  const Names knocked = TriedWithin(std::chrono::minutes(1));
  for (const char* each : {"a:1", "b:1", "c:1", "d:1"}) {
    EXPECT_GE(std::count(knocked.begin(), knocked.end(), each), 10) << each;
  }
  for (const char* each : {"e:1", "f:1", "good", "g:1"}) {
    EXPECT_EQ(std::count(knocked.begin(), knocked.end(), each), 0) << each;
  }
  EXPECT_EQ(Servers()[6].state, ChannelServer::State::kReady);
}

// A subset of a few among ten servers.
class LookingOnTest : public ReachingTest {
 protected:
  static constexpr int kServers = 10;

  static std::string NameOf(int server) { return "server-" + std::to_string(server); }
  void OpenSubset(uint32_t subset_size = 1, LinkLimits limits = {}) {
    std::string target = "static:" + NameOf(0);
    for (int i = 1; i < kServers; ++i) target += "," + NameOf(i);
    limits.connect_timeout = kLong;
    Open(target, {.subset_size = subset_size}, limits);
  }
  // The client's order of the servers.
  Names Ranked() {
    const auto& id = CoreOf(*client_runtime_).shard(0).runtime_id().bytes;
    const uint64_t client =
        StableHash(std::string_view(reinterpret_cast<const char*>(id.data()), id.size()));
    Names ranked;
    for (int i = 0; i < kServers; ++i) ranked.push_back(NameOf(i));
    std::sort(ranked.begin(), ranked.end(), [client](const auto& one, const auto& other) {
      return SubsetRank(client, StableHash(one)) > SubsetRank(client, StableHash(other));
    });
    return ranked;
  }
  // The client has one link, to a server far down its order. The first two are to serve it.
  void ExpectItKeepsItsLinkAndKnocksAtTheFirstTwo(const Names& ranked) {
    clock_.Advance(*client_runtime_, seconds(1));
    bootstrap_.TakeTried();
    const Names knocked = TriedWithin(std::chrono::minutes(1));
    EXPECT_GE(std::count(knocked.begin(), knocked.end(), ranked[0]), 10);
    EXPECT_GE(std::count(knocked.begin(), knocked.end(), ranked[1]), 10);
    for (int i = 2; i < kServers; ++i) {
      EXPECT_EQ(std::count(knocked.begin(), knocked.end(), ranked[i]), 0) << i;
    }
    EXPECT_EQ(client_runtime_->endpoint_stats(0).links_opened, 1u);
    EXPECT_EQ(StartEcho().Join(), absl::OkStatus());
  }
};

TEST_F(LookingOnTest, ASubsetReachesTheOnlyServerThatIsUpAndKeepsIt) {
  OpenSubset();
  const Names ranked = Ranked();
  Serve(ranked.back());
  JoinHandle<absl::Status> call =
      StartEcho({.deadline = std::chrono::hours(100), .wait_for_ready = true});
  const Names tried = TriedWithin(std::chrono::minutes(1));
  ASSERT_EQ(std::count(tried.begin(), tried.end(), ranked.back()), 1);
  EXPECT_EQ(call.Join(), absl::OkStatus());
  ExpectItKeepsItsLinkAndKnocksAtTheFirstTwo(ranked);
}

// Its links are for three servers, fewer than twice the subset: one that is ready, and two of the
// first ones, which fail.
TEST_F(LookingOnTest, ServersThatFailDoNotTakeTheLastLinkOfTheOneThatServes) {
  OpenSubset(/*subset_size=*/2, {.max_links = 4});
  const Names ranked = Ranked();
  Serve(ranked.back());
  JoinHandle<absl::Status> call =
      StartEcho({.deadline = std::chrono::hours(100), .wait_for_ready = true});
  clock_.Advance(*client_runtime_, std::chrono::minutes(1));
  EXPECT_EQ(call.Join(), absl::OkStatus());
  ExpectItKeepsItsLinkAndKnocksAtTheFirstTwo(ranked);
}

TEST_F(LookingOnTest, AnOutageOfAllMakesFewAttemptsAtEach) {
  OpenSubset();
  JoinHandle<absl::Status> call =
      StartEcho({.deadline = std::chrono::hours(1), .wait_for_ready = true});
  const Names tried = TriedWithin(std::chrono::minutes(10));
  for (const std::string& each : Ranked()) {
    EXPECT_GE(std::count(tried.begin(), tried.end(), each), 1) << each;
  }
  EXPECT_LE(tried.size(), 2000u);
  clock_.Advance(*client_runtime_, std::chrono::minutes(50));
  EXPECT_FALSE(call.Join().ok());
}

TEST_F(ReachingTest, AServerThatJoinsClosesNoLinkBeforeItIsReady) {
  Serve("good");
  const auto resolver = std::make_shared<FakeResolver>();
  Open("the set", {.balancing = Balancing::kPickFirst, .resolver = resolver});
  resolver->Tell(*client_runtime_, std::vector<ResolvedServer>{{.addresses = {"good"}}});
  ASSERT_EQ(StartEcho().Join(), absl::OkStatus());
  bootstrap_.TakeTried();
  resolver->Tell(*client_runtime_,
                 std::vector<ResolvedServer>{{.addresses = {"silent:1"}}, {.addresses = {"good"}}});
  // A feed waits for so long between two sets.
  ASSERT_EQ(TriedWithin(milliseconds(100)), Names{"silent:1"});
  EXPECT_EQ(Servers()[1].state, ChannelServer::State::kReady);
}

}  // namespace reaching_test
}  // namespace verbena::internal
