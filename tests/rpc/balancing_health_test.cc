// A channel to many servers connects to some of them, calls none that fails or is slow beside the
// others, tells who watches it, and leaves links to other channels.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/rpc/dedupe_testing.verbena.pb.h"
#include "tests/rpc/server_set.h"
#include "tests/support/any_handler.h"
#include "tests/support/watched.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {
namespace balancing_health_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = ChannelServer::State;
using Counts = std::vector<uint64_t>;

// Runtimes whose links do not end while a test moves the clock by hours.
RuntimeOptions ClockedBy(testing::FakeClock& clock) {
  RuntimeOptions runtime;
  runtime.clock = &clock;
  runtime.limits.ping_interval = std::chrono::hours(1000);
  runtime.limits.connect_timeout = std::chrono::hours(1000);
  runtime.limits.idle_timeout = Duration::zero();
  return runtime;
}

class BalancingHealthTest : public ServerSetTest {
 protected:
  using ServerSetTest::CountOf;
  size_t CountOf(State state) { return CountOf(state, Servers()); }
};

TEST_F(BalancingHealthTest, ASubsetIsAsLargeAsItShouldBeAndReplacesAServerThatIsGone) {
  StartServers(6);
  StartClient(StaticTarget(), {.subset_size = 2});
  EchoOften(1);
  AwaitReady(2);
  EXPECT_EQ(CountOf(State::kIdle), 4u);
  TakeEchoes();
  EchoOften(10);
  Counts echoes = TakeEchoes();
  std::vector<int> subset;
  for (size_t i = 0; i < echoes.size(); ++i) {
    if (echoes[i] != 0) subset.push_back(static_cast<int>(i));
  }
  ASSERT_EQ(subset.size(), 2u);
  EXPECT_EQ(echoes[subset[0]], 5u);
  StopServer(subset[0]);
  // Another one takes its place.
  AwaitServers([&](const std::vector<ChannelServer>& servers) {
    return CountOf(State::kReady, servers) == 2 && servers[subset[0]].state != State::kReady;
  });
  EchoOften(10);
  echoes = TakeEchoes();
  EXPECT_EQ(echoes[subset[0]], 0u);
  EXPECT_EQ(echoes[subset[1]], 5u);
  StartServer(subset[0]);
  // The first server comes back, and its substitute leaves.
  AwaitServers([&](const std::vector<ChannelServer>& servers) {
    return servers[subset[0]].state == State::kReady && CountOf(State::kReady, servers) == 2 &&
           CountOf(State::kIdle, servers) == 4;
  });
}

TEST_F(BalancingHealthTest, ASetLeavesLinksToOtherChannelsAndSaysSo) {
  RuntimeOptions runtime;
  runtime.limits.max_links = 8;
  StartServers(9);
  std::string target = "static:" + Address(0);
  for (int i = 1; i < 8; ++i) target += "," + Address(i);
  StartClient(target, {}, std::move(runtime));
  EchoOften(1);
  AwaitReady(6);
  int refused = 0;
  for (const ChannelServer& each : Servers()) {
    if (each.state != State::kIdle) continue;
    ++refused;
    EXPECT_TRUE(absl::IsResourceExhausted(each.last_error)) << each.last_error;
    EXPECT_NE(each.last_error.message().find("set ChannelOptions::subset_size"), std::string::npos)
        << each.last_error;
  }
  EXPECT_EQ(refused, 2);
  Channel other(*client_runtime_, Address(8));
  EXPECT_EQ(Run(other.Connect()), absl::OkStatus());
}

TEST_F(BalancingHealthTest, AWatcherOfTheServersHearsOfEachChange) {
  testing::FakeClock clock;
  StartServers(2);
  StartClient(StaticTarget(), {}, ClockedBy(clock));
  EchoOften(1);
  // Until both are ready: none of the changes is lost, however they fall.
  uint64_t seen = 0;
  for (;;) {
    const absl::StatusOr<uint64_t> changed = Run(channel_->ServersChanged(seen));
    ASSERT_TRUE(changed.ok()) << changed.status();
    EXPECT_NE(*changed, seen);
    seen = *changed;
    if (CountOf(State::kReady) == 2) break;
  }
  // The last of these changes may have come since. While the clock stands still, no attempt to
  // connect follows that would tell, too.
  seen = Run(channel_->ServersChanged(0)).value_or(0);
  JoinHandle<absl::StatusOr<uint64_t>> watch =
      client_runtime_->Spawn(channel_->ServersChanged(seen));
  clock.Advance(*client_runtime_, Duration::zero());
  EXPECT_FALSE(watch.done());
  StopServer(1);
  EXPECT_TRUE(watch.Join().ok());
  EXPECT_EQ(CountOf(State::kReady), 1u);
  clock.Run();
  channel_.reset();
  client_runtime_.reset();
}

TEST_F(BalancingHealthTest, AChannelToOneServerIsWatchedLikewise) {
  StartServers(1);
  StartClient(Address(0));
  EchoOften(1);
  const absl::StatusOr<uint64_t> ready = Run(channel_->ServersChanged(0));
  ASSERT_TRUE(ready.ok()) << ready.status();
  JoinHandle<absl::StatusOr<uint64_t>> watch =
      client_runtime_->Spawn(channel_->ServersChanged(*ready));
  StopServer(0);
  const absl::StatusOr<uint64_t> lost = watch.Join();
  ASSERT_TRUE(lost.ok()) << lost.status();
  EXPECT_NE(*lost, *ready);
  EXPECT_NE(Servers()[0].state, State::kReady);
}

TEST_F(BalancingHealthTest, ARestartThatNobodyWatchedIsNoticedLater) {
  StartServers(1);
  StartClient(Address(0));
  EchoOften(1);
  const absl::StatusOr<uint64_t> seen = Run(channel_->ServersChanged(0));
  ASSERT_TRUE(seen.ok()) << seen.status();
  StopServer(0);
  AwaitServers([](const auto& servers) { return servers[0].state != State::kReady; });
  StartServer(0);
  EXPECT_EQ(Run(Echo({.wait_for_ready = true})), absl::OkStatus());
  EXPECT_EQ(Servers()[0].state, State::kReady) << "as before";
  // Does not wait.
  EXPECT_TRUE(Run(WithDeadline(channel_->ServersChanged(*seen), Duration::zero())).ok());
}

// Waits until the test opens it.
class GateInterceptor final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    ++waiting;
    (void)co_await open.Until(true);
    co_return co_await next();
  }
  Watched<bool> open{true};
  Watched<int> waiting;
};

TEST_F(BalancingHealthTest, ACallThatWaitsForReadyOutlastsALinkLostBehindItsInterceptors) {
  const auto gate = std::make_shared<GateInterceptor>();
  StartServers(1);
  StartClient(StaticTarget(), {.interceptors = {gate}});
  EchoOften(1);
  gate->open = false;
  const int before = gate->waiting;
  JoinHandle<absl::Status> call = client_runtime_->Spawn(Echo({.wait_for_ready = true}));
  EXPECT_EQ(Run(gate->waiting.Until(before + 1)), absl::OkStatus()) << "its server is chosen";
  StopServer(0);
  AwaitServers([](const auto& servers) { return servers[0].state == State::kFailing; });
  const uint32_t failures = Servers()[0].failures;
  gate->open = true;
  // The call goes on.
  AwaitServers([&](const auto& servers) { return servers[0].failures >= failures + 2; });
  StartServer(0);
  EXPECT_EQ(call.Join(), absl::OkStatus());
}

// Answers at once, or throws, or refuses, or waits whatever its client does, as the test says;
// knows the threads that it ran on.
class MoodyService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext& context, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override {
    ++echoes;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    if (throws) throw std::runtime_error("out of cheese");
    if (refuses) co_return context.NotExecuted(absl::UnavailableError("busy"));
    co_await Hang();
    reply.set_number(request.number());
    co_return absl::OkStatus();
  }
  Task<void> Hang() {
    ++waiting;
    (void)co_await waits.Until(false).In(nullptr);
    --waiting;
  }
  std::set<std::thread::id> TakeThreads() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(threads_, {});
  }

  std::atomic<uint64_t> echoes{0};
  std::atomic<bool> throws{false};
  std::atomic<bool> refuses{false};
  Watched<bool> waits;
  Watched<int> waiting;

 private:
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

// Its calls run once, and wait as those of the server's MoodyService do.
class MoodyCounter final : public testing::Counter::Service {
 public:
  explicit MoodyCounter(MoodyService& mood) : mood_(mood) {}

  Task<absl::Status> Add(ServerContext&, const testing::AddRequest&, testing::AddReply&) override {
    co_await mood_.Hang();
    co_return absl::OkStatus();
  }

 private:
  MoodyService& mood_;
};

class MoodyServersTest : public BalancingHealthTest {
 protected:
  ~MoodyServersTest() override {
    for (const auto& each : services_) each->waits = false;
  }

  std::string StartMoody(int count, int executors = 1) {
    server_runtime_ = StartRuntime({.executors = executors});
    std::string target;
    for (int i = 0; i < count; ++i) {
      services_.push_back(std::make_unique<MoodyService>());
      counters_.push_back(std::make_unique<MoodyCounter>(*services_.back()));
      absl::StatusOr<std::unique_ptr<Server>> server =
          Server::Start(*server_runtime_, {services_.back().get(), counters_.back().get()});
      EXPECT_TRUE(server.ok()) << server.status();
      target += (i == 0 ? "static:" : ",") + (*server)->address();
      servers_.push_back(*std::move(server));
    }
    return target;
  }
  // How many of these calls each server had.
  Counts Call(int calls) {
    Counts counts;
    for (const auto& each : services_) counts.push_back(each->echoes);
    for (int i = 0; i < calls; ++i) (void)Run(Echo());
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = services_[i]->echoes - counts[i];
    return counts;
  }

  testing::FakeClock clock_;
  std::vector<std::unique_ptr<MoodyService>> services_;
  std::vector<std::unique_ptr<MoodyCounter>> counters_;
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST_F(MoodyServersTest, AServerThatThrowsTakesNoCallsForAWhile) {
  StartClient(StartMoody(3), {.ejection = {.interval = seconds(1)}}, ClockedBy(clock_));
  (void)Run(Echo());
  AwaitReady(3);
  EXPECT_EQ(Call(30), (Counts{10, 10, 10}));
  services_[1]->throws = true;
  EXPECT_EQ(Call(30), (Counts{10, 10, 10})) << "not judged yet";
  clock_.Advance(*client_runtime_, seconds(1));
  EXPECT_EQ(Call(30), (Counts{15, 0, 15}));
  const ChannelServer ejected = Servers()[1];
  EXPECT_EQ(ejected.state, State::kEjected);
  EXPECT_NE(ejected.last_error.message().find("takes no calls for a while"), std::string::npos)
      << ejected.last_error;
  services_[1]->throws = false;
  clock_.Advance(*client_runtime_, seconds(10));
  EXPECT_EQ(CountOf(State::kReady), 3u);
  EXPECT_EQ(Call(30), (Counts{10, 10, 10}));
  clock_.Run();
  channel_.reset();
  client_runtime_.reset();
}

TEST_F(MoodyServersTest, AChannelJudgesNoCallsThatWereBeforeItsTime) {
  const std::string target = StartMoody(3);
  StartClient(target, {.ejection = {.interval = std::chrono::hours(1)}}, ClockedBy(clock_));
  (void)Run(Echo());
  AwaitReady(3);
  services_[1]->throws = true;
  EXPECT_EQ(Call(30), (Counts{10, 10, 10}));
  services_[1]->throws = false;
  // Over the same links.
  const std::unique_ptr<Channel> former = std::move(channel_);
  StartClient(target,
              {.ejection = {.interval = seconds(1), .consecutive_failures = 0, .min_calls = 3}});
  (void)Run(Echo());
  AwaitReady(3);
  EXPECT_EQ(Call(9), (Counts{3, 3, 3}));
  clock_.Advance(*client_runtime_, seconds(1));
  EXPECT_EQ(CountOf(State::kReady), 3u);
  clock_.Run();
  channel_.reset();
  client_runtime_.reset();
}

TEST_F(MoodyServersTest, AServerThatIsSlowTakesNoCallsForAWhile) {
  StartClient(StartMoody(3), {.ejection = {.interval = seconds(1), .latency_factor = 3}},
              ClockedBy(clock_));
  (void)Run(Echo());
  AwaitReady(3);
  services_[2]->waits = true;
  // One in 16 of a server's calls is timed, and four must be.
  constexpr int kOfEach = 16 * 5;
  std::vector<JoinHandle<absl::Status>> calls;
  Watched<int> answered;
  const auto call = [&]() -> Task<absl::Status> {
    absl::Status status = co_await Echo();
    ++answered;
    co_return status;
  };
  for (int i = 0; i < 3 * kOfEach; ++i) calls.push_back(client_runtime_->Spawn(call()));
  // The others answer theirs.
  EXPECT_EQ(Run(services_[2]->waiting.Until([](int count) { return count >= kOfEach; })),
            absl::OkStatus());
  EXPECT_EQ(Run(answered.Until([](int count) { return count >= 2 * kOfEach; })), absl::OkStatus());
  clock_.Advance(*client_runtime_, milliseconds(100));
  services_[2]->waits = false;
  for (JoinHandle<absl::Status>& each : calls) EXPECT_EQ(each.Join(), absl::OkStatus());
  clock_.Advance(*client_runtime_, seconds(1));
  EXPECT_EQ(Servers()[2].state, State::kEjected);
  EXPECT_EQ(Call(30), (Counts{15, 15, 0}));
  clock_.Run();
  channel_.reset();
  client_runtime_.reset();
}

class PassingInterceptor final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    co_return co_await next();
  }
};

class LimitingInterceptor final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    co_return co_await WithDeadline(next(), kLimit);
  }

  static constexpr Duration kLimit = milliseconds(5);
};

// Makes the calls of others for them.
class Frontend final : public testing::Testing::Service {
 public:
  explicit Frontend(AnyHandler<> call) : call_(std::move(call)) {}
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest&,
                          testing::EchoReply&) override {
    co_return co_await call_();
  }

 private:
  const AnyHandler<> call_;
};

// Six calls each to three servers, of which one does not answer.
class SilentServerTest : public MoodyServersTest {
 protected:
  static constexpr Duration kLimit = LimitingInterceptor::kLimit;
  static constexpr size_t kOfEach = 6;

  // How a call comes to its end, and what that does.
  struct Way {
    const char* name;
    ChannelOptions options = {};
    AnyHandler<> call = {};
    Duration passes = kLimit;  // until the calls have ended
    bool cancels = false;      // then
    absl::StatusCode ends = absl::StatusCode::kDeadlineExceeded;
    bool ejects = true;
  };

  ~SilentServerTest() override {
    for (const auto& each : services_) each->waits = false;
    clock_.Run();
    frontend_.reset();
    to_frontend_.reset();
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
  }

  // Calls that this class makes with `options`.
  AnyHandler<> Calls(CallOptions options = {}) {
    return [this, deadline = options.deadline]() -> Task<absl::Status> {
      co_return co_await Echo({.deadline = deadline});
    };
  }
  // Calls that a handler makes, whose own client gives them a deadline.
  AnyHandler<> CallsOfAHandler() {
    return [this]() -> Task<absl::Status> {
      testing::Testing::Stub stub(*to_frontend_);
      co_return (co_await stub.Echo(testing::EchoRequest(), {.deadline = kLimit})).status();
    };
  }
  static ServiceConfig RetriedAfter(Duration attempt_timeout) {
    return {.methods = {{.retry = RetryPolicy{.max_attempts = 2,
                                              .initial_backoff = milliseconds(1),
                                              .max_backoff = milliseconds(1),
                                              .attempt_timeout = attempt_timeout}}}};
  }

  void StartFrontend() {
    service_ = std::make_unique<Frontend>(Calls());
    frontend_ = *Server::Start(*client_runtime_, {service_.get()});
    to_frontend_ = std::make_unique<Channel>(*client_runtime_, frontend_->address());
    EXPECT_EQ(Run(to_frontend_->Connect()), absl::OkStatus());
  }

  void Expect(const Way& way) {
    SCOPED_TRACE(way.name);
    ChannelOptions options = way.options;
    options.ejection = {.interval = seconds(1)};
    StartClient(target_, std::move(options), ClockedBy(clock_));
    if (frontend_ == nullptr) StartFrontend();
    EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
    AwaitReady(3);
    MoodyService& silent = *services_[1];
    silent.waits = true;
    Watched<size_t> ended;
    const auto call = [&]() -> Task<absl::Status> {
      absl::Status status = co_await way.call();
      ++ended;
      co_return status;
    };
    std::vector<JoinHandle<absl::Status>> calls;
    for (size_t i = 0; i < 3 * kOfEach; ++i) calls.push_back(client_runtime_->Spawn(call()));
    EXPECT_EQ(Run(silent.waiting.Until(kOfEach)), absl::OkStatus());
    EXPECT_EQ(Run(ended.Until(2 * kOfEach)), absl::OkStatus()) << "the others answer";
    clock_.Advance(*client_runtime_, way.passes);
    if (way.cancels) {
      for (JoinHandle<absl::Status>& each : calls) each.RequestCancel();
    }
    size_t good = 0;
    for (JoinHandle<absl::Status>& each : calls) {
      const absl::Status status = each.Join();
      if (status.ok()) ++good;
      if (status.ok() || way.cancels) continue;
      EXPECT_EQ(status.code(), way.ends) << status;
      EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted) << status;
      EXPECT_NE(status.message().find("passed before 127.0.0.1"), std::string::npos) << status;
    }
    EXPECT_EQ(good, (way.ends == absl::StatusCode::kOk ? 3 : 2) * kOfEach);
    clock_.Advance(*client_runtime_, seconds(1));
    EXPECT_EQ(Servers()[1].state == State::kEjected, way.ejects);
    EXPECT_EQ(CountOf(State::kReady), way.ejects ? 2u : 3u);
    silent.waits = false;
    EXPECT_EQ(Run(silent.waiting.Until(0)), absl::OkStatus());
  }

  std::string target_;
  std::unique_ptr<Frontend> service_;
  std::unique_ptr<Server> frontend_;
  std::unique_ptr<Channel> to_frontend_;
};

// The table of docs/guide.md.
TEST_F(SilentServerTest, ADeadlineMeansTheSameHoweverItComes) {
  const auto passing = std::make_shared<PassingInterceptor>();
  target_ = StartMoody(3);
  const AnyHandler<> dedupes = [this]() -> Task<absl::Status> {
    const testing::Counter::Stub stub(*channel_);
    co_return (co_await stub.Add(testing::AddRequest())).status();
  };
  const AnyHandler<> limited = [this]() -> Task<absl::Status> {
    co_return co_await WithDeadline(Echo(), kLimit);
  };
  const ServiceConfig hedged = {.methods = {{.hedging = HedgingPolicy{.delay = milliseconds(2)}}}};
  const Way ways[] = {
      {.name = "the call's own", .call = Calls({.deadline = kLimit})},
      {.name = "the channel's", .options = {.default_deadline = kLimit}, .call = Calls()},
      {.name = "the method's",
       .options = {.service_config = {.methods = {{.timeout = kLimit}}}},
       .call = Calls()},
      {.name = "the call's own, behind interceptors",
       .options = {.interceptors = {passing}},
       .call = Calls({.deadline = kLimit})},
      {.name = "an interceptor's",
       .options = {.interceptors = {std::make_shared<LimitingInterceptor>()}},
       .call = Calls()},
      {.name = "WithDeadline()", .call = limited},
      {.name = "the handler's", .call = CallsOfAHandler()},
      {.name = "an attempt's",
       .options = {.service_config = RetriedAfter(kLimit)},
       .call = Calls(),
       .passes = kLimit + milliseconds(2),
       .ends = absl::StatusCode::kOk},
      {.name = "an attempt's, behind interceptors",
       .options = {.interceptors = {passing}, .service_config = RetriedAfter(kLimit)},
       .call = Calls(),
       .passes = kLimit + milliseconds(2),
       .ends = absl::StatusCode::kOk},
      {.name = "an attempt's, of a call that runs once",
       .options = {.service_config = RetriedAfter(kLimit)},
       .call = dedupes,
       .passes = 2 * kLimit + milliseconds(2)},
      {.name = "a hedge comes first",
       .options = {.service_config = hedged},
       .call = Calls(),
       .passes = milliseconds(2),
       .ends = absl::StatusCode::kOk,
       .ejects = false},
      {.name = "its caller cancels it", .call = Calls(), .cancels = true, .ejects = false},
  };
  for (const Way& way : ways) Expect(way);
}

TEST_F(MoodyServersTest, ASecondAttemptGoesToNoOtherExecutorOfTheSameServer) {
  const RetryPolicy twice = {
      .max_attempts = 2, .initial_backoff = milliseconds(1), .max_backoff = milliseconds(1)};
  StartClient(StartMoody(2, /*executors=*/4),
              {.executors_per_server = 4, .service_config = {.methods = {{.retry = twice}}}});
  (void)Run(Echo());
  AwaitReady(2);
  services_[0]->refuses = true;
  EchoOften(40);
  EXPECT_GT(services_[0]->echoes, 0u);
}

TEST_F(MoodyServersTest, AKeyStaysWithItsExecutorOfTheServer) {
  StartClient(StartMoody(1, /*executors=*/3),
              {.balancing = Balancing::kRouteKey, .executors_per_server = 3});
  (void)Run(Echo());
  Eventually([&] { return client_runtime_->endpoint_stats(0).links == 3; },
             "each executor has its link");
  AwaitReady(1);
  EXPECT_EQ(Servers().size(), 1u);
  (void)services_[0]->TakeThreads();
  std::set<std::thread::id> all;
  for (uint64_t key = 0; key < 60; ++key) {
    EchoOften(3, key);
    const std::set<std::thread::id> threads = services_[0]->TakeThreads();
    EXPECT_EQ(threads.size(), 1u) << "key " << key;
    all.insert(threads.begin(), threads.end());
  }
  EXPECT_EQ(all.size(), 3u);
}

TEST_F(BalancingHealthTest, OptionsOfSetsThatCannotHoldAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  StartServers(1);
  StartClient(StaticTarget());
  const auto open = [&](ChannelOptions options) {
    Channel channel(*client_runtime_, StaticTarget(), std::move(options));
  };
  EXPECT_DEATH(open({.balancing = Balancing::kRouteKey, .subset_size = 3}),
               "subset_size is 3, but kPickFirst needs one server");
  EXPECT_DEATH(open({.subset_size = Resolver::kMaxServers + 1}), "subset_size is 1025");
  EXPECT_DEATH(open({.executors_per_server = 0}), "executors_per_server is 0, its range 1 to 64");
  EXPECT_DEATH(open({.server_key = 7, .executors_per_server = 2}), "leave server_executor");
  EXPECT_DEATH(open({.ejection = {.interval = seconds(1), .max_ejected_percent = 51}}),
               "max_ejected_percent is 51, its range 1 to 50");
  EXPECT_DEATH(open({.ejection = {.interval = seconds(1), .latency_factor = 1}}),
               "latency_factor is 1");
}

}  // namespace balancing_health_test
}  // namespace verbena
