// Calls of a channel with a service config have further attempts over real links: on another server
// of the set, with the caller's memory, and never if that could run a mutation twice.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/rpc/link_breaker.h"
#include "tests/rpc/payload_testing.verbena.pb.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/stream_service.h"
#include "tests/rpc/stream_testing.verbena.pb.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/rpc/watched_device.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {
namespace retry_test {

using namespace std::chrono_literals;

// Fails as often as a test says, or hangs.
class FailingService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override {
    ++calls;
    if (hangs) {
      const absl::Status slept = co_await SleepUntil(kNever);
      ++cancelled;
      co_return slept;
    }
    if (failures > 0) {
      --failures;
      co_return absl::UnavailableError("busy");
    }
    reply.set_number(request.number());
    co_return absl::OkStatus();
  }
  Task<absl::Status> Fail(ServerContext& context, const testing::FailRequest& request,
                          testing::Empty&) override {
    ++calls;
    if (failures == 0) co_return absl::OkStatus();
    --failures;
    const absl::Status busy = absl::UnavailableError("busy");
    co_return request.not_executed() ? context.NotExecuted(busy) : busy;
  }

  std::atomic<int> calls{0};
  std::atomic<int> failures{0};
  std::atomic<bool> hangs{false};
  std::atomic<int> cancelled{0};
};

// Refuses the next call if a test says so.
class FailingPayloads final : public testing::Payloads::Service {
 public:
  std::atomic<bool> refuse_next{true};

 private:
  Task<absl::Status> Put(ServerContext& context, const testing::PutRequest&,
                         testing::PutReply& reply) override {
    if (refuse_next.exchange(false)) co_return context.NotExecuted(absl::UnavailableError("busy"));
    reply.set_has_payload(context.has_request_payload());
    const Buffer payload = context.TakeRequestPayload();
    reply.set_bytes(payload.size());
    reply.set_right(std::all_of(payload.data(), payload.data() + payload.size(),
                                [](char c) { return c == 'p'; }));
    co_return absl::OkStatus();
  }
  Task<absl::Status> Get(ServerContext& context, const testing::GetRequest& request,
                         testing::GetReply&) override {
    if (refuse_next.exchange(false)) co_return context.NotExecuted(absl::UnavailableError("busy"));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer answer, co_await context.AllocateBuffer(request.bytes()));
    std::memset(answer.data(), 'g', answer.size());
    context.SetResponsePayload(std::move(answer));
    co_return absl::OkStatus();
  }
};

// Counts the calls that it sees.
class CountingInterceptor final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    ++seen;
    co_return co_await next();
  }

  std::atomic<int> seen{0};
};

RetryPolicy Quick() { return {.initial_backoff = 1ms, .max_backoff = 2ms}; }

class RetryTest : public RuntimePair {
 protected:
  struct Member {
    FailingService service;
    std::unique_ptr<Server> server;
  };

  void StartServers(int count) {
    server_runtime_ = StartRuntime();
    for (int i = 0; i < count; ++i) {
      members_.push_back(std::make_unique<Member>());
      absl::StatusOr<std::unique_ptr<Server>> server =
          Server::Start(*server_runtime_, {&members_.back()->service});
      ASSERT_TRUE(server.ok()) << server.status();
      members_.back()->server = *std::move(server);
      target_ += (i == 0 ? "static:" : ",") + members_.back()->server->address();
    }
  }
  void MakeChannel(ChannelOptions options) {
    channel_ = std::make_unique<Channel>(*client_runtime_, target_, std::move(options));
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }
  void StartClient(MethodConfig config, ChannelOptions options = {}, RuntimeOptions runtime = {}) {
    options.service_config = {.methods = {std::move(config)}};
    client_runtime_ = StartRuntime(std::move(runtime));
    MakeChannel(std::move(options));
  }
  void StartBoth(int servers, MethodConfig config, ChannelOptions options = {},
                 RuntimeOptions runtime = {}) {
    StartServers(servers);
    StartClient(std::move(config), std::move(options), std::move(runtime));
    AwaitServers();
  }
  void AwaitServers() {
    Eventually(
        [&] {
          (void)Run(channel_->Connect());
          const std::vector<ChannelServer> all = *Run(ServersHere());
          return std::all_of(all.begin(), all.end(), [](const ChannelServer& each) {
            return each.state == ChannelServer::State::kReady;
          });
        },
        "all servers are ready");
  }
  Task<absl::StatusOr<std::vector<ChannelServer>>> ServersHere() { co_return channel_->Servers(); }

  absl::Status Echo(CallOptions options = {}) {
    return client_runtime_->BlockOn(stub_->Echo(testing::EchoRequest(), std::move(options)))
        .status();
  }
  absl::Status Fail(bool not_executed, CallOptions options = {}) {
    testing::FailRequest request;
    request.set_not_executed(not_executed);
    return client_runtime_->BlockOn(stub_->Fail(std::move(request), std::move(options))).status();
  }
  // The server that calls with `key` go to.
  FailingService& ServiceOf(uint64_t key) {
    // By a method with side effects: no hedge of it reaches another server.
    EXPECT_EQ(Fail(/*not_executed=*/false, {.route_key = key}), absl::OkStatus());
    for (const auto& each : members_) {
      if (each->service.calls.exchange(0) == 1) return each->service;
    }
    ADD_FAILURE() << "no server had the call";
    return members_[0]->service;
  }
  int calls() const {
    int calls = 0;
    for (const auto& each : members_) calls += each->service.calls;
    return calls;
  }

  std::vector<std::unique_ptr<Member>> members_;
  std::string target_;
  std::unique_ptr<testing::Testing::Stub> stub_;
};

TEST_F(RetryTest, AFailureThatMayPassIsTriedAgain) {
  StartBoth(1, {.retry = Quick()});
  members_[0]->service.failures = 2;
  CallInfo info;
  EXPECT_EQ(Echo({.info = &info}), absl::OkStatus());
  EXPECT_EQ(calls(), 3);
  EXPECT_GE(info.elapsed, 2 * Quick().initial_backoff * 4 / 5) << "all attempts and pauses count";
  const RetryStats stats = channel_->retry_stats();
  EXPECT_EQ(stats.calls, 1u);
  EXPECT_EQ(stats.attempts, 3u);
  EXPECT_EQ(stats.retries, 2u);
  members_[0]->service.failures = 3;
  const absl::Status status = Echo();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(),
            "after 3 attempts: busy; no further attempt: RetryPolicy::max_attempts is 3");
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

TEST_F(RetryTest, ACallThatMayHaveRunIsNotMadeAgain) {
  StartBoth(1, {.retry = Quick()});
  members_[0]->service.failures = 1;
  EXPECT_TRUE(absl::IsUnavailable(Fail(/*not_executed=*/false)));
  EXPECT_EQ(calls(), 1);
  EXPECT_EQ(channel_->retry_stats().refused_as_unsafe, 1u);
  members_[0]->service.failures = 1;
  EXPECT_EQ(Fail(/*not_executed=*/true), absl::OkStatus());
  EXPECT_EQ(calls(), 3);
}

TEST_F(RetryTest, ASecondAttemptGoesToAnotherServer) {
  StartBoth(3, {.retry = Quick()}, {.balancing = Balancing::kRouteKey});
  FailingService& own = ServiceOf(7);
  own.failures = 1000;
  EXPECT_EQ(Echo({.route_key = 7}), absl::OkStatus());
  EXPECT_EQ(own.calls, 1);
  EXPECT_EQ(calls(), 2);
}

TEST_F(RetryTest, ASlowServersCallIsAnsweredByAnotherOne) {
  StartBoth(3, {.hedging = HedgingPolicy{.delay = 1ms}}, {.balancing = Balancing::kRouteKey});
  FailingService& own = ServiceOf(7);
  own.hangs = true;
  EXPECT_EQ(Echo({.route_key = 7}), absl::OkStatus());
  // The two are on different links.
  Eventually([&] { return own.calls == 1; }, "the first attempt arrives");
  EXPECT_EQ(calls(), 2);
  EXPECT_GE(channel_->retry_stats().hedges, 1u);
  Eventually([&] { return own.cancelled == 1; }, "the slow server's handler is cancelled");
}

TEST_F(RetryTest, AMethodWithSideEffectsHasOneAttemptWhateverItsPolicyIs) {
  StartBoth(3, {.hedging = HedgingPolicy{.delay = Duration::zero()}});
  EXPECT_EQ(Fail(/*not_executed=*/false), absl::OkStatus());
  EXPECT_EQ(calls(), 1);
  EXPECT_EQ(channel_->retry_stats().attempts, 0u);
}

TEST_F(RetryTest, OnlyTheMethodsThatAreNamedHaveFurtherAttempts) {
  StartBoth(1, {.name = "verbena.testing.Testing/Fail", .retry = Quick()});
  members_[0]->service.failures = 1;
  EXPECT_TRUE(absl::IsUnavailable(Echo()));
  EXPECT_EQ(calls(), 1);
  EXPECT_EQ(channel_->retry_stats().calls, 0u);
}

TEST_F(RetryTest, InterceptorsRunAroundEachAttempt) {
  auto interceptor = std::make_shared<CountingInterceptor>();
  StartBoth(1, {.retry = Quick()}, {.interceptors = {interceptor}});
  members_[0]->service.failures = 1;
  EXPECT_EQ(Echo(), absl::OkStatus());
  EXPECT_EQ(interceptor->seen, 2);
}

TEST_F(RetryTest, ATimeoutOfTheConfigEndsACallAndATaskMayEndItEarlier) {
  StartBoth(1, {.timeout = 20ms});
  members_[0]->service.hangs = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Echo()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Echo({.deadline = Deadline::None()})));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Echo({.deadline = 1ms})));
}

TEST_F(RetryTest, AttemptsThatHangAreCutOff) {
  MovedClock clock;
  RuntimeOptions runtime{.clock = &clock};
  runtime.limits.ping_interval = 100h;
  runtime.limits.idle_timeout = Duration::zero();
  RetryPolicy policy = Quick();
  policy.attempt_timeout = 1h;
  StartBoth(3, {.retry = policy}, {.balancing = Balancing::kRouteKey}, std::move(runtime));
  FailingService& own = ServiceOf(7);
  own.hangs = true;
  JoinHandle<absl::StatusOr<testing::EchoReply>> call =
      client_runtime_->Spawn(stub_->Echo(testing::EchoRequest(), {.route_key = 7}));
  Eventually([&] { return own.calls == 1; }, "the first attempt hangs");
  clock.moved_by = 1h;
  Eventually([&] { return call.done(); }, "the call ends");
  EXPECT_EQ(call.Join().status(), absl::OkStatus());
  EXPECT_EQ(own.calls, 1);
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
}

TEST_F(RetryTest, AConfigThatIsOutOfRangeAborts) {
  client_runtime_ = StartRuntime();
  EXPECT_DEATH(
      Channel(*client_runtime_, "a:1",
              {.service_config = {.methods = {{.retry = RetryPolicy{.max_attempts = 1}}}}}),
      "max_attempts is 1, its range 2 to 5");
}

TEST_F(RetryTest, CallsWaitForAServerIfTheConfigSaysSo) {
  target_ = "static:127.0.0.1:1";
  StartClient({.timeout = 50ms, .wait_for_ready = true});
  const absl::Status status = Echo();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(RetryTest, AStreamIsTriedAgainWhileNoServerCanBeReached) {
  target_ = "static:127.0.0.1:1";
  StartClient({.retry = Quick()});
  const testing::Streaming::Stub streams(*channel_);
  const absl::Status status = Run([](const testing::Streaming::Stub& stub) -> Task<absl::Status> {
    ClientReader<testing::StreamItem> reader = stub.Count(testing::CountRequest());
    (void)co_await reader.Read();
    co_return co_await reader.Finish();
  }(streams));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(channel_->retry_stats().retries, 2u);
}

// The budget has tokens for the failures of three attempts.
TEST_F(RetryTest, TheAwaitsOfAStreamShareItsAttempts) {
  target_ = "static:127.0.0.1:1";
  client_runtime_ = StartRuntime();
  MakeChannel({.service_config = {.methods = {{.retry = Quick()}}, .budget = {.max_tokens = 5}}});
  const testing::Streaming::Stub streams(*channel_);
  const absl::Status status = Run([](const testing::Streaming::Stub& stub) -> Task<absl::Status> {
    auto stream = stub.Echo();
    const auto read = [&stream]() -> Task<bool> { co_return (co_await stream.Read()).has_value(); };
    const testing::StreamItem item;
    auto [got, written] = co_await WhenAll(read(), stream.Write(item));
    EXPECT_FALSE(got);
    EXPECT_FALSE(written.ok());
    co_return co_await stream.Finish();
  }(streams));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(
      absl::EndsWith(status.message(), "; no further attempt: RetryPolicy::max_attempts is 3"))
      << status;
  const RetryStats stats = channel_->retry_stats();
  EXPECT_EQ(stats.calls, 1u);
  EXPECT_EQ(stats.attempts, 3u);
}

TEST_F(RetryTest, StreamsThatFindTheirLinkGiveTokensBack) {
  StartServers(1);
  StreamingService streaming;
  FailingService& service = members_[0]->service;
  members_[0]->server = *Server::Start(*server_runtime_, {&service, &streaming});
  target_ = members_[0]->server->address();
  client_runtime_ = StartRuntime();
  MakeChannel({.service_config = {.methods = {{.retry = Quick()}},
                                  .budget = {.max_tokens = 4, .token_ratio = 1}}});
  // Two tokens are left, which allow no further attempt.
  service.failures = 2;
  EXPECT_TRUE(absl::IsUnavailable(Echo()));
  EXPECT_EQ(channel_->retry_stats().refused_by_budget, 1u);
  const testing::Streaming::Stub streams(*channel_);
  const auto count = [](const testing::Streaming::Stub& stub) -> Task<absl::Status> {
    ClientReader<testing::StreamItem> reader = stub.Count(testing::CountRequest());
    (void)co_await reader.Read();
    co_return co_await reader.Finish();
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Run(count(streams)), absl::OkStatus());
  service.failures = 1;
  EXPECT_EQ(Echo(), absl::OkStatus());
  EXPECT_EQ(channel_->retry_stats().refused_by_budget, 1u);
}

class LostLinkRetryTest : public RetryTest {
 protected:
  void TearDown() override {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
  }

  internal::LinkBreaker breaker_;
};

// A budget that each of them would use up.
TEST_F(LostLinkRetryTest, ItsCallsHaveFurtherAttemptsHoweverManyTheyAre) {
  StartServers(2);
  client_runtime_ = StartRuntime({}, breaker_.device());
  MakeChannel({.balancing = Balancing::kRouteKey,
               .service_config = {.methods = {{.retry = Quick()}}, .budget = {.max_tokens = 4}}});
  AwaitServers();
  FailingService& own = ServiceOf(7);
  own.hangs = true;
  std::vector<JoinHandle<absl::StatusOr<testing::EchoReply>>> calls;
  for (int i = 0; i < 40; ++i) {
    calls.push_back(client_runtime_->Spawn(stub_->Echo(testing::EchoRequest(), {.route_key = 7})));
  }
  Eventually([&] { return own.calls == 40; }, "all calls hang");
  breaker_.Arm(internal::CallEvent::kRequestPosted);
  EXPECT_EQ(Echo({.route_key = 7}), absl::OkStatus());
  for (auto& call : calls) EXPECT_EQ(call.Join().status(), absl::OkStatus());
  const RetryStats stats = channel_->retry_stats();
  EXPECT_EQ(stats.retries, 41u);
  EXPECT_EQ(stats.refused_by_budget, 0u);
}

class RetriedPayloadTest : public RuntimePair {
 protected:
  void TearDown() override { StopAll(); }

  void Start() {
    server_runtime_ = StartRuntime({}, breaker_.device());
    ServeWith(service_);
    client_runtime_ = StartRuntime({}, breaker_.device());
    channel_ = std::make_unique<Channel>(
        *client_runtime_, server_->address(),
        ChannelOptions{.service_config = {.methods = {{.retry = Quick()}}}});
  }
  Task<absl::StatusOr<testing::PutReply>> Put(size_t bytes, Payload* back) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await channel_->AllocateBuffer(bytes));
    std::memset(payload.data(), 'p', bytes);
    const testing::Payloads::Stub stub(*channel_);
    co_return co_await stub.Put(testing::PutRequest(),
                                {.request_payload = std::move(payload), .returned_payload = back});
  }
  Task<absl::Status> GetInto(size_t bytes) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer room, co_await channel_->AllocateBuffer(bytes));
    const char* const mine = room.data();
    const testing::Payloads::Stub stub(*channel_);
    testing::GetRequest request;
    request.set_bytes(bytes);
    WithPayload<testing::GetReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub.Get(request, reply, {.response_payload_into = std::move(room)}));
    EXPECT_TRUE(reply.has_payload);
    EXPECT_EQ(reply.payload.data(), mine);
    EXPECT_EQ(reply.payload.size(), bytes);
    EXPECT_EQ(reply.payload.data()[bytes - 1], 'g');
    co_return absl::OkStatus();
  }

  internal::LinkBreaker breaker_;
  FailingPayloads service_;
};

TEST_F(RetriedPayloadTest, ARequestsPayloadGoesWithTheSecondAttempt) {
  Start();
  for (const size_t bytes : {size_t{100}, size_t{256} << 10}) {
    service_.refuse_next = true;
    Payload back;
    const absl::StatusOr<testing::PutReply> reply = Run(Put(bytes, &back));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(reply->has_payload());
    EXPECT_TRUE(reply->right());
    EXPECT_EQ(reply->bytes(), bytes);
    EXPECT_EQ(back.size(), bytes);
  }
  EXPECT_EQ(channel_->retry_stats().retries, 2u);
}

TEST_F(RetriedPayloadTest, TheCallersMemoryServesForTheSecondAttempt) {
  Start();
  EXPECT_EQ(Run(GetInto(256 << 10)), absl::OkStatus());
  EXPECT_EQ(channel_->retry_stats().retries, 1u);
}

// The server that is lost may still read it, but nobody changes it.
TEST_F(RetriedPayloadTest, APayloadWhoseServerIsLostGoesWithTheSecondAttempt) {
  Start();
  service_.refuse_next = false;
  for (const internal::CallEvent event :
       {internal::CallEvent::kRequestArrived, internal::CallEvent::kResponsePosted}) {
    SCOPED_TRACE(internal::CallEventName(event));
    breaker_.Arm(event);
    Payload back;
    const absl::StatusOr<testing::PutReply> reply = Run(Put(256 << 10, &back));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(reply->right());
    EXPECT_FALSE(back.present());
    EXPECT_EQ(breaker_.broken_at(event), 1);
    EXPECT_TRUE(Run(Put(100, &back)).ok());
    EXPECT_TRUE(back.present());
  }
  EXPECT_EQ(channel_->retry_stats().retries, 2u);
}

// The next attempt would need that memory for itself alone.
TEST_F(RetriedPayloadTest, ACallWhoseServerMayStillWriteToTheCallersMemorySaysSo) {
  Start();
  service_.refuse_next = false;
  breaker_.Arm(internal::CallEvent::kResponsePosted);
  const absl::Status status = Run(GetInto(256 << 10));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  EXPECT_NE(status.message().find("no further attempt"), std::string::npos) << status;
  EXPECT_EQ(channel_->retry_stats().retries, 0u);
}

}  // namespace retry_test
}  // namespace verbena
