// The client code of docs/guide.md compiles, and does what the guide says.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/docs/block_client.h"
#include "tests/docs/block_service.h"
#include "tests/docs/blocks.pb.h"
#include "tests/docs/blocks.verbena.pb.h"
#include "tests/docs/slow_clock.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/log.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace guide {
namespace {

using namespace std::chrono_literals;
using verbena::Annotate;
using verbena::Balancing;
using verbena::CallInfo;
using verbena::CallOptions;
using verbena::Channel;
using verbena::Event;
using verbena::Generator;
using verbena::HedgingPolicy;
using verbena::JoinHandle;
using verbena::LogComponentName;
using verbena::LogField;
using verbena::Mutex;
using verbena::MutexLock;
using verbena::OutcomeOf;
using verbena::Queue;
using verbena::RetryAfterOf;
using verbena::RetryPolicy;
using verbena::Runtime;
using verbena::Server;
using verbena::ServiceConfig;
using verbena::TraceContext;
using verbena::WithRetryAfter;
using verbena::WithTrace;

Task<absl::StatusOr<uint64_t>> SizeInSet(Channel& set, std::string name, uint64_t volume) {
  const v1::Blocks::Stub blocks(set);
  v1::StatRequest request;
  request.set_name(std::move(name));
  // Calls for one volume go to one server while that is connected. A restart delays calls only if
  // no other server is ready.
  VERBENA_CO_ASSIGN_OR_RETURN(
      const v1::StatReply reply,
      co_await blocks.Stat(request, {.deadline = 1s, .route_key = volume, .wait_for_ready = true}));
  co_return reply.bytes();
}

Task<absl::Status> AwaitServers(Channel& set, size_t wanted) {
  uint64_t seen = 0;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await set.ServersChanged(seen));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<verbena::ChannelServer> servers, set.Servers());
    size_t ready = 0;
    for (const verbena::ChannelServer& each : servers) {
      if (each.state == verbena::ChannelServer::State::kReady) ++ready;
    }
    if (ready >= wanted) co_return absl::OkStatus();
  }
}

Task<absl::StatusOr<uint64_t>> SizeFor(Channel& channel, std::string name, std::string tenant) {
  const v1::Blocks::Stub blocks(channel);
  v1::StatRequest request;
  request.set_name(std::move(name));
  CallInfo info;
  CallOptions options{.deadline = 1s, .info = &info, .metadata = {{"tenant", tenant}}};
  absl::StatusOr<v1::StatReply> reply = co_await blocks.Stat(request, std::move(options));
  if (std::optional<std::string_view> owner = info.trailing_metadata.Get("owner")) {
    EXPECT_EQ(*owner, tenant);
  }
  if (!reply.ok()) co_return reply.status();
  co_return reply->bytes();
}

Task<absl::StatusOr<uint64_t>> SizeInTrace(Channel& channel, std::string traceparent,
                                           std::string tracestate) {
  absl::StatusOr<TraceContext> trace = TraceContext::Parse(traceparent, tracestate);
  if (!trace.ok()) trace = TraceContext::Root(/*sampled=*/false);
  co_return co_await WithTrace(SizeFor(channel, "a", "blue"), *trace);
}

Task<absl::StatusOr<v1::StatReply>> StatAtOnce(Channel& channel, std::string name) {
  const v1::Blocks::Stub blocks(channel);
  v1::StatRequest request;
  request.set_name(std::move(name));
  co_return co_await blocks.Stat(request, {.priority = verbena::Priority::kControl});
}

ServiceConfig RetriesAndHedging() {
  return {.methods = {
              // All methods of the service but those that have a config of their own.
              {.name = "guide.v1.Blocks", .retry = RetryPolicy{.max_attempts = 4}},
              {.name = "guide.v1.Blocks/Stat", .hedging = HedgingPolicy{.delay = 5ms}},
          }};
}

absl::StatusOr<ServiceConfig> ConfigOfFile(std::string_view json) {
  // "3:17: the key "maxAttempt" is not known here; these are: …"
  return verbena::ParseServiceConfig(json);
}

Task<absl::StatusOr<uint64_t>> SumOfTwo(Channel& channel) {
  auto [a, b] = co_await verbena::WhenAll(SizeOf(channel, "a"), SizeOf(channel, "b"));
  if (!a.ok()) co_return a.status();
  if (!b.ok()) co_return b.status();
  co_return *a + *b;
}

Task<absl::StatusOr<std::string>> NextName(Queue<std::string>& names, Event& stopped) {
  auto first = co_await verbena::WhenAny(names.Pop(), stopped.Wait());
  if (first.index() == 1) co_return absl::UnavailableError("stopped");
  co_return std::get<0>(std::move(first));
}

Task<absl::Status> WriteAll(Channel& channel, std::vector<std::string> names) {
  co_return co_await verbena::ForEach(
      std::move(names), 16, [&](const std::string& name) -> Task<absl::Status> {
        co_return co_await WriteBlock(channel, name, "sixteen at a time");
      });
}

Generator<absl::StatusOr<uint64_t>> Sizes(Channel& channel, std::vector<std::string> names) {
  for (const std::string& name : names) {
    absl::StatusOr<uint64_t> size = co_await SizeOf(channel, name);
    if (!absl::IsNotFound(size.status())) co_yield std::move(size);
  }
}

Task<absl::StatusOr<uint64_t>> SumOfSizes(Channel& channel, std::vector<std::string> names) {
  uint64_t sum = 0;
  Generator<absl::StatusOr<uint64_t>> sizes = Sizes(channel, std::move(names));
  while (std::optional<absl::StatusOr<uint64_t>> size = co_await sizes.Next()) {
    if (!size->ok()) co_return size->status();
    sum += **size;
  }
  co_return sum;
}

Task<absl::Status> AppendToBlock(Channel& channel, Mutex& mutex, std::string name,
                                 std::string more) {
  VERBENA_CO_ASSIGN_OR_RETURN(const MutexLock lock, co_await mutex.Lock());
  VERBENA_CO_ASSIGN_OR_RETURN(const std::string block, co_await ReadBlock(channel, name));
  co_return co_await WriteBlock(channel, name, block + more);
}

absl::StatusOr<uint64_t> SumInTheBackground(Runtime& runtime, Channel& channel,
                                            std::vector<std::string> names) {
  JoinHandle<absl::StatusOr<uint64_t>> sum =
      runtime.Spawn([&channel, names]() -> Task<absl::StatusOr<uint64_t>> {
        co_return co_await SumOfSizes(channel, names);
      });
  // This thread may do something else here.
  return sum.Join();
}

Task<int> SumInAThread(std::vector<int> numbers) {
  co_return co_await verbena::RunBlocking([&] {
    int sum = 0;
    for (int number : numbers) sum += number;
    return sum;
  });
}

class RebuildingService final : public v1::Blocks::Service {
 public:
  Task<absl::Status> Write(ServerContext& context, const v1::WriteRequest&,
                           v1::WriteReply&) override {
    co_return context.NotExecuted(WithRetryAfter(absl::UnavailableError("rebuilding"), 50ms));
  }
};

class FrontService final : public v1::Blocks::Service {
 public:
  // Passes calls on to the target of `backend`, which outlives the service.
  explicit FrontService(Channel& backend) : backend_(backend) {}

  Task<absl::Status> Stat(ServerContext& context, const v1::StatRequest& request,
                          v1::StatReply& reply) override {
    absl::Status status = co_await backend_.Stat(request, reply);
    if (OutcomeOf(status) == verbena::Outcome::kNotExecuted) {
      co_return context.NotExecuted(status);  // nothing was done here or there
    }
    co_return Annotate(status, "the backend");
  }

 private:
  const v1::Blocks::Stub backend_;
};

// Refuses calls of unknown tenants, before their handlers run.
class TenantCheck final : public verbena::ServerInterceptor {
 public:
  Task<absl::Status> Intercept(verbena::ServerCallView& call, verbena::ServerNext next) override {
    if (call.metadata().Get("tenant") != "blue") {
      co_return absl::PermissionDeniedError("this tenant may not call");
    }
    co_return co_await next();
  }
};

// Counts calls, and adds a tenant to each.
class TenantInterceptor final : public verbena::ClientInterceptor {
 public:
  Task<absl::Status> Intercept(verbena::ClientCallView& call, verbena::ClientNext next) override {
    ++calls;
    call.metadata.Add("tenant", "blue");
    absl::Status status = co_await next();
    if (!status.ok()) ++failures;
    co_return status;
  }

  std::atomic<int> calls{0};
  std::atomic<int> failures{0};
};

class TenantService final : public v1::Blocks::Service {
 public:
  Task<absl::Status> Stat(ServerContext& context, const v1::StatRequest&,
                          v1::StatReply& reply) override {
    const std::optional<std::string_view> tenant = context.metadata().Get("tenant");
    if (!tenant) co_return context.NotExecuted(absl::PermissionDeniedError("no tenant"));
    VERBENA_CO_RETURN_IF_ERROR(context.AddTrailingMetadata("owner", *tenant));
    reply.set_bytes(7);
    co_return absl::OkStatus();
  }
};

class OverloadTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start();
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(*runtime_, {&service_},
                      {.admission = {.max_running = 64,
                                     .max_queue_age = 2ms,
                                     .methods = {{"guide.v1.Blocks/Stat", {.max_calls = 8}}}}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<Runtime> runtime_;
  BlockService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(OverloadTest, AServerWithBoundsServes) {
  Channel channel(*runtime_, server_->address());
  EXPECT_EQ(runtime_->BlockOn(StatAtOnce(channel, "a")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(server_->stats().refused, 0u);
}

class GuideTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Runtime>> runtime =
        Runtime::Start({.device = "soft", .clock = &clock_});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*runtime_, {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = std::make_unique<Channel>(*runtime_, server_->address());
  }

  // Destroyed from the last to the first.
  SlowClock clock_;
  std::unique_ptr<Runtime> runtime_;
  BlockService service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(GuideTest, ABlockComesBackAsItWasWritten) {
  EXPECT_EQ(runtime_->BlockOn(WriteBlock(*channel_, "a", "sixteen bytes...")), absl::OkStatus());
  absl::StatusOr<std::string> block = runtime_->BlockOn(ReadBlock(*channel_, "a"));
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(*block, "sixteen bytes...");
}

TEST_F(GuideTest, AnErrorOfTheHandlerReachesTheCaller) {
  const absl::Status status = runtime_->BlockOn(ReadBlock(*channel_, "none")).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(OutcomeOf(status), verbena::Outcome::kExecuted);
}

TEST_F(GuideTest, AHandlerThatRefusesSaysWhenToTryAgain) {
  RebuildingService service;
  std::unique_ptr<Server> server = *Server::Start(*runtime_, {&service});
  Channel channel(*runtime_, server->address());
  const absl::Status status = runtime_->BlockOn(WriteBlock(channel, "a", "early"));
  EXPECT_EQ(OutcomeOf(status), verbena::Outcome::kNotExecuted) << status;
  EXPECT_EQ(RetryAfterOf(status), 50ms);
}

TEST_F(GuideTest, MetadataReachesTheHandlerAndComesBack) {
  TenantService service;
  std::unique_ptr<Server> server = *Server::Start(*runtime_, {&service});
  Channel channel(*runtime_, server->address());
  EXPECT_EQ(*runtime_->BlockOn(SizeFor(channel, "a", "blue")), 7u);
  EXPECT_EQ(*runtime_->BlockOn(SizeInTrace(channel, "no trace", "")), 7u);
  const absl::Status status = runtime_->BlockOn(SizeOf(channel, "a")).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_EQ(OutcomeOf(status), verbena::Outcome::kNotExecuted);
}

TEST_F(GuideTest, AChannelStandsForASetOfServers) {
  std::unique_ptr<Server> other = *Server::Start(*runtime_, {&service_});
  ASSERT_EQ(runtime_->BlockOn(WriteBlock(*channel_, "a", "sixteen bytes...")), absl::OkStatus());
  const std::string target = "static:" + server_->address() + "," + other->address();
  Channel set(*runtime_, target, {.balancing = Balancing::kRouteKey});
  EXPECT_EQ(runtime_->BlockOn(AwaitServers(set, 2)), absl::OkStatus());
  Channel judged(*runtime_, target, {.ejection = {.interval = 1s, .latency_factor = 5}});
  EXPECT_TRUE(runtime_->BlockOn(SizeInSet(judged, "a", 1)).ok());
  for (uint64_t volume : {1, 2, 3, 4}) {
    const absl::StatusOr<uint64_t> size = runtime_->BlockOn(SizeInSet(set, "a", volume));
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(*size, 16u);
  }
}

TEST_F(GuideTest, AChannelMakesFurtherAttemptsByItself) {
  Channel retried(*runtime_, server_->address(), {.service_config = RetriesAndHedging()});
  ASSERT_EQ(runtime_->BlockOn(WriteBlock(retried, "a", "sixteen bytes...")), absl::OkStatus());
  EXPECT_EQ(*runtime_->BlockOn(SizeOf(retried, "a")), 16u);
  EXPECT_EQ(retried.retry_stats().calls, 2u);
  EXPECT_THAT(std::string(ConfigOfFile("{\"methodConfigs\": []}").status().message()),
              testing::StartsWith("1:2: the key \"methodConfigs\" is not known"));
}

TEST_F(GuideTest, AnInterceptorRunsAroundEachCall) {
  TenantService service;
  std::unique_ptr<Server> server = *Server::Start(*runtime_, {&service});
  const auto tenant = std::make_shared<TenantInterceptor>();
  Channel channel(*runtime_, server->address(), {.interceptors = {tenant}});
  EXPECT_EQ(*runtime_->BlockOn(SizeOf(channel, "a")), 7u);
  EXPECT_TRUE(absl::IsUnimplemented(runtime_->BlockOn(WriteBlock(channel, "a", "x"))));
  EXPECT_EQ(tenant->calls, 2);
  EXPECT_EQ(tenant->failures, 1);
}

TEST_F(GuideTest, AServersInterceptorEndsACallBeforeItsHandlerRuns) {
  TenantService service;
  std::unique_ptr<Server> server =
      *Server::Start(*runtime_, {&service}, {.interceptors = {std::make_shared<TenantCheck>()}});
  Channel channel(*runtime_, server->address());
  EXPECT_EQ(*runtime_->BlockOn(SizeFor(channel, "a", "blue")), 7u);
  const absl::Status status = runtime_->BlockOn(SizeFor(channel, "a", "red")).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_EQ(OutcomeOf(status), verbena::Outcome::kNotExecuted);
}

TEST_F(GuideTest, AFailureOfABackendIsPassedOnWithItsOutcome) {
  Channel nowhere(*runtime_, "127.0.0.1:1");
  for (Channel* backend : {channel_.get(), &nowhere}) {
    FrontService front(*backend);
    std::unique_ptr<Server> server = *Server::Start(*runtime_, {&front});
    Channel channel(*runtime_, server->address());
    const absl::Status status = runtime_->BlockOn(SizeOf(channel, "none")).status();
    EXPECT_EQ(absl::IsNotFound(status), backend != &nowhere) << status;
    EXPECT_EQ(OutcomeOf(status),
              backend == &nowhere ? verbena::Outcome::kNotExecuted : verbena::Outcome::kExecuted);
  }
}

TEST_F(GuideTest, ABlockForAServerThatIsNotThereWasNotSent) {
  Channel nowhere(*runtime_, "127.0.0.1:1");
  const absl::Status status = runtime_->BlockOn(WriteBlockWithRetries(nowhere, "a", "lost"));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), verbena::Outcome::kNotExecuted);
}

TEST_F(GuideTest, APayloadThatIsLargerThanTheCallerTakesIsRefused) {
  EXPECT_EQ(runtime_->BlockOn(WriteBlock(*channel_, "large", std::string(2 << 20, 'x'))),
            absl::OkStatus());
  const absl::Status status = runtime_->BlockOn(ReadBlock(*channel_, "large")).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(OutcomeOf(status), verbena::Outcome::kExecuted);
}

TEST_F(GuideTest, CallsRunSideBySide) {
  EXPECT_EQ(runtime_->BlockOn(WriteBlockWithRetries(*channel_, "a", "one")), absl::OkStatus());
  EXPECT_EQ(runtime_->BlockOn(WriteBlockWithRetries(*channel_, "b", "three")), absl::OkStatus());
  absl::StatusOr<uint64_t> sum = runtime_->BlockOn(SumOfTwo(*channel_));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, 8u);
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back(std::to_string(i));
  EXPECT_EQ(runtime_->BlockOn(WriteAll(*channel_, names)), absl::OkStatus());
  absl::StatusOr<uint64_t> size = runtime_->BlockOn(SizeOf(*channel_, "99"));
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(*size, 17u);
}

TEST_F(GuideTest, AGeneratorGivesTheSizesOfTheBlocksThatThereAre) {
  EXPECT_EQ(runtime_->BlockOn(WriteAll(*channel_, {"a", "b"})), absl::OkStatus());
  absl::StatusOr<uint64_t> sum = runtime_->BlockOn(SumOfSizes(*channel_, {"a", "none", "b"}));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, 2 * 17u);
}

// Returns at once. An executor calls `done`, which must not block.
void SizeThen(Runtime& runtime, Channel& channel, std::string name,
              std::function<void(absl::StatusOr<uint64_t>)> done) {
  (void)runtime.Spawn([&channel, name = std::move(name), done = std::move(done)]() -> Task<void> {
    done(co_await SizeOf(channel, name));
  });
}

Task<bool> TakesANameAndStops() {
  Queue<std::string> names(1);
  Event stopped;
  (void)names.TryPush("a");
  const absl::StatusOr<std::string> name = co_await NextName(names, stopped);
  stopped.Set();
  const absl::StatusOr<std::string> none = co_await NextName(names, stopped);
  co_return name.ok() && *name == "a" && absl::IsUnavailable(none.status());
}

TEST_F(GuideTest, NextNameIsANameOrTheEnd) { EXPECT_TRUE(runtime_->BlockOn(TakesANameAndStops())); }

Task<absl::Status> AppendTwice(Channel& channel) {
  Mutex mutex;
  auto [one, two] = co_await verbena::WhenAll(AppendToBlock(channel, mutex, "log", "one "),
                                              AppendToBlock(channel, mutex, "log", "two "));
  VERBENA_CO_RETURN_IF_ERROR(one);
  co_return two;
}

TEST_F(GuideTest, NeitherOfTwoThatAppendUnderAMutexIsLost) {
  EXPECT_EQ(runtime_->BlockOn(WriteBlock(*channel_, "log", "zero ")), absl::OkStatus());
  EXPECT_EQ(runtime_->BlockOn(AppendTwice(*channel_)), absl::OkStatus());
  absl::StatusOr<std::string> block = runtime_->BlockOn(ReadBlock(*channel_, "log"));
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(*block, "zero one two ");
}

TEST_F(GuideTest, ASpawnedTaskIsJoined) {
  EXPECT_EQ(runtime_->BlockOn(WriteAll(*channel_, {"a", "b"})), absl::OkStatus());
  absl::StatusOr<uint64_t> sum = SumInTheBackground(*runtime_, *channel_, {"a", "b"});
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, 2 * 17u);
}

TEST_F(GuideTest, AThreadWithoutCoroutinesGetsTheResultInACallback) {
  EXPECT_EQ(runtime_->BlockOn(WriteBlock(*channel_, "a", "three")), absl::OkStatus());
  std::promise<absl::StatusOr<uint64_t>> promise;
  std::future<absl::StatusOr<uint64_t>> size = promise.get_future();
  SizeThen(*runtime_, *channel_, "a",
           [&promise](absl::StatusOr<uint64_t> result) { promise.set_value(std::move(result)); });
  ASSERT_EQ(size.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(*size.get(), 5u);
}

TEST_F(GuideTest, WorkThatBlocksRunsInAThread) {
  EXPECT_EQ(runtime_->BlockOn(SumInAThread({1, 2, 3})), 6);
}

// Verbena's lines go to `kept`, which stays until there is another sink.
void KeepLog(std::mutex& mutex, std::vector<std::string>& kept) {
  verbena::SetLogSink([&mutex, &kept](const verbena::LogRecord& record) {
    std::string line(LogComponentName(record.component));
    line.append(": ").append(record.text);
    for (const LogField& field : record.fields) {
      line.append(" ").append(field.key).append("=").append(field.value);
    }
    std::lock_guard lock(mutex);
    kept.push_back(std::move(line));
  });
}

TEST_F(GuideTest, ASinkOfTheProgramsGetsTheLinesThatTheLevelsAdmit) {
  const std::string before = verbena::LogLevels();
  std::mutex mutex;
  std::vector<std::string> kept;
  KeepLog(mutex, kept);
  const absl::Status wrong = verbena::SetLogLevels("off,aplication=info");
  EXPECT_THAT(std::string(wrong.message()), ::testing::HasSubstr("write \"application\""));
  EXPECT_EQ(verbena::SetLogLevels("off,application=info"), absl::OkStatus());
  verbena::Log(verbena::LogLevel::kInfo, "the volume is mounted");
  verbena::SetLogSink(nullptr);
  EXPECT_EQ(verbena::SetLogLevels(before), absl::OkStatus());
  EXPECT_THAT(kept, ::testing::ElementsAre("application: the volume is mounted"));
}

}  // namespace
}  // namespace guide
