// The client code of docs/guide.md compiles, and does what the guide says.

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/docs/block_service.h"
#include "tests/docs/blocks.pb.h"
#include "tests/docs/blocks.verbena.pb.h"
#include "tests/docs/blocks_mock.verbena.pb.h"
#include "verbena/rpc/annotate.h"
#include "verbena/rpc/balancing.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/retry_after.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/stream_interface.h"
#include "verbena/rpc/sync.h"
#include "verbena/rpc/task.h"
#include "verbena/rpc/time.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/testing.h"

namespace guide {
namespace {

using namespace std::chrono_literals;
using verbena::Annotate;
using verbena::Balancing;
using verbena::CallInfo;
using verbena::Channel;
using verbena::ClientReader;
using verbena::ClientReaderInterface;
using verbena::ClientReaderWriter;
using verbena::ClientWriter;
using verbena::Generator;
using verbena::JoinHandle;
using verbena::Mutex;
using verbena::MutexLock;
using verbena::OutcomeOf;
using verbena::RetryAfterOf;
using verbena::Runtime;
using verbena::Server;
using verbena::TraceContext;
using verbena::WithRetryAfter;
using verbena::WithTrace;

Task<absl::StatusOr<uint64_t>> SizeOf(Channel& channel, std::string name) {
  const v1::Blocks::Stub blocks(channel);
  v1::StatRequest request;
  request.set_name(std::move(name));
  absl::StatusOr<v1::StatReply> reply = co_await blocks.Stat(request, {.deadline = 1s});
  if (!reply.ok()) co_return reply.status();
  co_return reply->bytes();
}

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

Task<absl::StatusOr<uint64_t>> SizeFor(Channel& channel, std::string name, std::string tenant) {
  const v1::Blocks::Stub blocks(channel);
  v1::StatRequest request;
  request.set_name(std::move(name));
  CallInfo info;
  absl::StatusOr<v1::StatReply> reply = co_await blocks.Stat(
      request, {.deadline = 1s, .info = &info, .metadata = {{"tenant", tenant}}});
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

Task<absl::Status> WriteBlock(Channel& channel, std::string name, std::string_view bytes) {
  const v1::Blocks::Stub blocks(channel);
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel.AllocateBuffer(bytes.size()));
  std::memcpy(block.data(), bytes.data(), bytes.size());
  v1::WriteRequest request;
  request.set_name(std::move(name));
  v1::WriteReply reply;
  co_return co_await blocks.Write(request, reply,
                                  {.deadline = 1s, .request_payload = std::move(block)});
}

Task<absl::StatusOr<std::string>> ReadBlock(Channel& channel, std::string name) {
  const v1::Blocks::Stub blocks(channel);
  v1::ReadRequest request;
  request.set_name(std::move(name));
  v1::ReadReply reply;
  VERBENA_CO_ASSIGN_OR_RETURN(
      WithPayload<v1::ReadReply> got,
      co_await blocks.Read(request, {.deadline = 1s, .max_response_payload = 1 << 20}));
  co_return std::string(got.payload.data(), got.payload.size());
}

Task<absl::Status> WriteBlockWithRetries(Channel& channel, std::string name, std::string bytes) {
  for (int attempt = 1;; ++attempt) {
    const absl::Status status = co_await WriteBlock(channel, name, bytes);
    const bool may_pass = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
    if (attempt == 3 || !may_pass || OutcomeOf(status) != verbena::Outcome::kNotExecuted) {
      co_return status;
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Sleep(RetryAfterOf(status).value_or(10ms)));
  }
}

Task<absl::StatusOr<std::vector<std::string>>> NamesOf(Channel& channel, std::string prefix) {
  const v1::Names::Stub names(channel);
  v1::ListRequest request;
  request.set_prefix(std::move(prefix));
  std::vector<std::string> all;
  ClientReader<v1::Name> reader = names.List(request, {.deadline = 1s});
  v1::Name name;
  while (co_await reader.Read(name)) all.push_back(name.name());
  VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
  co_return all;
}

Task<absl::StatusOr<uint64_t>> ReserveNames(Channel& channel, std::vector<std::string> wanted) {
  const v1::Names::Stub names(channel);
  ClientWriter<v1::Name, v1::ReserveReply> writer = names.Reserve();
  v1::Name name;
  for (const std::string& next : wanted) {
    name.set_name(next);
    if (!(co_await writer.Write(name)).ok()) break;  // Finish() says why
  }
  absl::StatusOr<v1::ReserveReply> reply = co_await writer.Finish();
  if (!reply.ok()) co_return reply.status();
  co_return reply->count();
}

Task<absl::StatusOr<std::string>> FirstName(Channel& channel) {
  const v1::Names::Stub names(channel);
  ClientReader<v1::Name> reader = names.List({}, {.deadline = 1s});
  const std::optional<v1::Name> first = co_await reader.Read();
  if (first.has_value()) co_return first->name();  // `reader` is destroyed: the handler stops
  VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
  co_return absl::NotFoundError("there are no names");
}

Task<absl::Status> SendAll(ClientReaderWriter<v1::Name, v1::CheckReply>& stream,
                           const std::vector<std::string>& names) {
  v1::Name name;
  absl::Status sent;
  for (const std::string& next : names) {
    name.set_name(next);
    sent = co_await stream.Write(name);
    if (!sent.ok()) break;
  }
  // Also after a failure: otherwise the server, and CountTaken(), wait for more.
  const absl::Status done = co_await stream.WritesDone();
  co_return sent.ok() ? done : sent;
}

Task<int> CountTaken(ClientReaderWriter<v1::Name, v1::CheckReply>& stream) {
  int taken = 0;
  v1::CheckReply reply;
  while (co_await stream.Read(reply)) taken += reply.taken() ? 1 : 0;
  co_return taken;
}

Task<absl::StatusOr<int>> TakenOf(Channel& channel, std::vector<std::string> names) {
  const v1::Names::Stub stub(channel);
  ClientReaderWriter<v1::Name, v1::CheckReply> stream = stub.Check({.deadline = 1s});
  auto [sent, taken] = co_await verbena::WhenAll(SendAll(stream, names), CountTaken(stream));
  VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
  VERBENA_CO_RETURN_IF_ERROR(sent);  // a message that was not sent, though the stream ended well
  co_return taken;
}

Task<absl::StatusOr<uint64_t>> CopyAll(Channel& from, Channel& to) {
  const v1::Copies::Stub source(from);
  const v1::Copies::Stub target(to);
  ClientReader<WithPayload<v1::Name>> reader = source.Export({}, {.deadline = 1s});
  ClientWriter<WithPayload<v1::Name>, v1::ImportReply> writer = target.Import({.deadline = 1s});
  WithPayload<v1::Name> block;
  while (co_await reader.Read(block)) {
    if (!(co_await writer.Write(block)).ok()) break;  // writer.Finish() says why
  }
  // First the reader's: if blocks are missing, `writer` must not end as whole.
  VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
  VERBENA_CO_ASSIGN_OR_RETURN(const v1::ImportReply reply, co_await writer.Finish());
  co_return reply.count();
}

Task<absl::StatusOr<uint64_t>> SumOfTwo(Channel& channel) {
  auto [a, b] = co_await verbena::WhenAll(SizeOf(channel, "a"), SizeOf(channel, "b"));
  if (!a.ok()) co_return a.status();
  if (!b.ok()) co_return b.status();
  co_return *a + *b;
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

// Counts the messages of streams.
class MessageCounter final : public verbena::ClientInterceptor {
 public:
  Task<absl::Status> Intercept(verbena::ClientCallView&, verbena::ClientNext next) override {
    co_return co_await next();
  }
  bool sees_messages() const override { return true; }
  void OnMessageSent(const verbena::ClientCallView&,
                     const google::protobuf::MessageLite&) noexcept override {
    ++sent;
  }
  void OnMessageReceived(const verbena::ClientCallView&,
                         const google::protobuf::MessageLite&) noexcept override {
    ++received;
  }

  std::atomic<int> sent{0};
  std::atomic<int> received{0};
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
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.device = "soft"});
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
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.device = "soft"});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*runtime_, {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = std::make_unique<Channel>(*runtime_, server_->address());
  }

  // Destroyed from the last to the first.
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
  for (uint64_t volume : {1, 2, 3, 4}) {
    const absl::StatusOr<uint64_t> size = runtime_->BlockOn(SizeInSet(set, "a", volume));
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(*size, 16u);
  }
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

TEST(GuideStreamsTest, NamesTravelBothWays) {
  verbena::testing::InProcess<NameService> names;
  EXPECT_THAT(names.Run(ReserveNames(names.channel(), {"b/2", "a/1", "b/1"})),
              verbena::testing::IsOkAndHolds(3u));
  EXPECT_THAT(names.Run(NamesOf(names.channel(), "b/")),
              verbena::testing::IsOkAndHolds(testing::ElementsAre("b/1", "b/2")));
  EXPECT_THAT(names.Run(FirstName(names.channel())), verbena::testing::IsOkAndHolds("a/1"));
  EXPECT_THAT(names.Run(TakenOf(names.channel(), {"a/1", "a/2", "b/1"})),
              verbena::testing::IsOkAndHolds(2));
}

TEST(GuideStreamsTest, BlocksAreCopied) {
  verbena::testing::InProcess<CopyService> from;
  from.service().Store("a", "one");
  from.service().Store("b", std::string(100'000, 'b'));
  EXPECT_THAT(from.Run(CopyAll(from.channel(), from.channel())),
              verbena::testing::IsOkAndHolds(2u));
}

TEST(GuideStreamsTest, AnInterceptorSeesEachMessage) {
  const auto counter = std::make_shared<MessageCounter>();
  verbena::testing::InProcess<NameService> names({.channel = {.interceptors = {counter}}});
  EXPECT_THAT(names.Run(ReserveNames(names.channel(), {"b/2", "a/1", "b/1"})),
              verbena::testing::IsOkAndHolds(3u));
  EXPECT_EQ(counter->sent, 3);
  EXPECT_THAT(names.Run(NamesOf(names.channel(), "b/")), verbena::testing::IsOk());
  EXPECT_EQ(counter->received, 2);
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

TEST_F(GuideTest, WorkThatBlocksRunsInAThread) {
  EXPECT_EQ(runtime_->BlockOn(SumInAThread({1, 2, 3})), 6);
}

// The section on tests.

using ::testing::_;
using ::testing::AllOf;
using ::testing::ByMove;
using ::testing::DoAll;
using ::testing::Return;
using ::testing::SetArgReferee;
using verbena::testing::FaultInjector;
using verbena::testing::HasOutcome;
using verbena::testing::InProcess;
using verbena::testing::InProcessServer;
using verbena::testing::InvokeTask;
using verbena::testing::IsOk;
using verbena::testing::IsOkAndHolds;
using verbena::testing::MockClientReader;
using verbena::testing::PayloadIs;
using verbena::testing::PlayMessages;
using verbena::testing::StatusIs;

TEST(BlocksTest, ABlockThatWasNotWrittenIsNotFound) {
  InProcess<BlockService> blocks;
  EXPECT_THAT(blocks.Run(WriteBlock(blocks.channel(), "a", "sixteen bytes...")), IsOk());
  EXPECT_THAT(blocks.Run(ReadBlock(blocks.channel(), "a")), IsOkAndHolds("sixteen bytes..."));
  EXPECT_THAT(
      blocks.Run(ReadBlock(blocks.channel(), "b")),
      AllOf(StatusIs(absl::StatusCode::kNotFound), HasOutcome(verbena::Outcome::kExecuted)));
}

TEST(BlocksTest, ABlockIsReadAsAPayload) {
  InProcess<BlockService> blocks;
  EXPECT_THAT(blocks.Run(WriteBlock(blocks.channel(), "a", "sixteen bytes...")), IsOk());
  v1::Blocks::Stub stub(blocks.channel());
  v1::ReadRequest request;
  request.set_name("a");
  EXPECT_THAT(blocks.Run(stub.Read(request)), IsOkAndHolds(PayloadIs("sixteen bytes...")));
}

class SlowService final : public v1::Blocks::Service {
 public:
  Task<absl::Status> Stat(ServerContext&, const v1::StatRequest&, v1::StatReply&) override {
    co_return co_await verbena::Sleep(1h);
  }
};

TEST(BlocksTest, ACallEndsAtItsDeadline) {
  InProcess<SlowService> blocks({.fake_clock = true});
  JoinHandle<absl::StatusOr<uint64_t>> size = blocks.runtime().Spawn(SizeOf(blocks.channel(), "a"));
  blocks.Advance(1s);
  EXPECT_THAT(size.Join(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(BlocksTest, AWriteThatDidNotReachTheServerIsTriedAgain) {
  auto faults = std::make_shared<FaultInjector>();
  InProcess<BlockService> blocks({.channel = {.interceptors = {faults}}});
  faults->Add({.method = "Write", .times = 1, .fail = absl::UnavailableError("busy")});
  EXPECT_THAT(blocks.Run(WriteBlockWithRetries(blocks.channel(), "a", "kept")), IsOk());
  EXPECT_EQ(faults->injected(), 1u);
}

Task<absl::StatusOr<bool>> Exists(v1::Blocks::StubInterface& blocks, std::string name) {
  v1::StatRequest request;
  request.set_name(std::move(name));
  const absl::Status status = (co_await blocks.Stat(std::move(request), {.deadline = 1s})).status();
  if (absl::IsNotFound(status)) co_return false;
  VERBENA_CO_RETURN_IF_ERROR(status);
  co_return true;
}

TEST(ExistsTest, OnlyNotFoundMeansNo) {
  v1::MockBlocksStub blocks;
  EXPECT_CALL(blocks, Stat(_, _))
      .WillOnce(Return(v1::StatReply()))
      .WillOnce(Return(absl::NotFoundError("gone")))
      .WillOnce(Return(absl::UnavailableError("the server is down")));
  InProcessServer fixture;
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), IsOkAndHolds(true));
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), IsOkAndHolds(false));
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(ExistsTest, AStubTakesTheMocksPlaceByAnAdapter) {
  InProcess<BlockService> fixture;
  v1::Blocks::StubAdapter blocks{v1::Blocks::Stub(fixture.channel())};
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), IsOkAndHolds(false));
}

Task<absl::StatusOr<int>> CountNames(v1::Names::StubInterface& names) {
  std::unique_ptr<ClientReaderInterface<v1::Name>> reader = names.List({});
  int count = 0;
  v1::Name name;
  while (co_await reader->Read(name)) ++count;
  VERBENA_CO_RETURN_IF_ERROR(co_await reader->Finish());
  co_return count;
}

v1::Name NameOf(std::string text) {
  v1::Name name;
  name.set_name(std::move(text));
  return name;
}

TEST(CountNamesTest, HalfOfTheNamesAreNoAnswer) {
  v1::MockNamesStub names;
  EXPECT_CALL(names, List)
      .WillOnce(PlayMessages<v1::Name>({NameOf("a"), NameOf("b")}))
      .WillOnce(PlayMessages<v1::Name>({NameOf("a")}, absl::UnavailableError("the link is lost")));
  InProcessServer fixture;
  EXPECT_THAT(fixture.Run(CountNames(names)), IsOkAndHolds(2));
  EXPECT_THAT(fixture.Run(CountNames(names)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(CountNamesTest, WaitsForTheEndOfTheStream) {
  auto reader = std::make_unique<MockClientReader<v1::Name>>();
  EXPECT_CALL(*reader, Read)
      .WillOnce(DoAll(SetArgReferee<0>(NameOf("a")), Return(true)))
      .WillOnce(Return(false));
  EXPECT_CALL(*reader, Finish).WillOnce(InvokeTask([]() -> Task<absl::Status> {
    co_return co_await verbena::Sleep(1ms);
  }));
  v1::MockNamesStub names;
  EXPECT_CALL(names, List).WillOnce(Return(ByMove(std::move(reader))));
  InProcessServer fixture;
  EXPECT_THAT(fixture.Run(CountNames(names)), IsOkAndHolds(1));
}

TEST(CountNamesTest, AnAdapterStreamsFromTheServer) {
  InProcess<NameService> fixture;
  EXPECT_THAT(fixture.Run(ReserveNames(fixture.channel(), {"a", "b", "c"})), IsOkAndHolds(3u));
  v1::Names::StubAdapter names{v1::Names::Stub(fixture.channel())};
  EXPECT_THAT(fixture.Run(CountNames(names)), IsOkAndHolds(3));
}

}  // namespace
}  // namespace guide
