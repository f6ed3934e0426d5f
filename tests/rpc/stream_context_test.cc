// Streams carry call context as unary calls do: what the caller gives, what the Task that begins
// the stream hands down, and what a channel's interceptors add. Interceptors run around a stream,
// and may refuse it. Trailing metadata comes back with any end.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/any_handler.h"
#include "tests/rpc/context_service.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/task.h"
#include "verbena/rpc/time.h"

namespace verbena::internal {
namespace {

using namespace std::chrono_literals;
using testing::StreamItem;

// Metadata of `bytes`, as they count, under the key "fill".
Metadata Filler(size_t bytes) {
  return {{"fill", std::string(bytes - Metadata::kEntryBytes - 4, 'f')}};
}

// Records the context of the last stream, and ends it as a test tells it to.
class RecordingService final : public testing::Streaming::Service {
 public:
  using Before = AnyHandler<ServerContext&>;

  Task<absl::Status> Count(ServerContext& context, const testing::CountRequest& request,
                           ServerWriter<StreamItem>& writer) override {
    filler_bytes = request.filler().size();
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    for (uint32_t i = 0; i < request.count(); ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(i)));
    }
    co_return absl::Status(static_cast<absl::StatusCode>(request.code()), "as was asked");
  }
  Task<absl::Status> Sum(ServerContext& context, ServerReader<StreamItem>& reader,
                         testing::Summary& reply) override {
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    StreamItem item;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await reader.Read(item));
      if (!read) co_return absl::OkStatus();
      reply.set_count(reply.count() + 1);
    }
  }
  Task<absl::Status> Echo(ServerContext& context,
                          ServerReaderWriter<StreamItem, StreamItem>& stream) override {
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    StreamItem item;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(item));
      if (!read) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(item));
    }
  }
  Task<absl::Status> Ignore(ServerContext& context,
                            ServerReaderWriter<StreamItem, StreamItem>&) override {
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    ++waiting;
    absl::Status ended = co_await SleepUntil(kNever);
    --waiting;
    co_return ended;
  }
  Task<absl::Status> Say(ServerContext& context, const StreamItem&, StreamItem&) override {
    co_return co_await Begin(context);
  }
  Task<absl::Status> Hold(ServerContext&, const StreamItem&, StreamItem&) override {
    co_return absl::OkStatus();
  }

  Before before;                  // runs at the start of each handler
  std::vector<SeenContext> seen;  // one for each handler that began
  std::atomic<int> waiting{0};
  size_t filler_bytes = 0;

 private:
  Task<absl::Status> Begin(ServerContext& context) {
    seen.push_back(SeenContext::Of(context));
    if (before) co_return co_await before(context);
    co_return absl::OkStatus();
  }
};

// Does what a test says.
class Client final : public ClientInterceptor {
 public:
  using Function = AnyHandler<ClientCallView&, ClientNext>;
  explicit Client(Function function) : function_(std::move(function)) {}

 private:
  VERBENA_CORO_WRAPPER Task<absl::Status> Intercept(ClientCallView& call,
                                                    ClientNext next) override {
    return function_(call, next);
  }
  const Function function_;
};

class StreamContextTest : public RuntimePair {
 protected:
  void Start(std::vector<Client::Function> interceptors = {}, ServerOptions server = {}) {
    server_runtime_ = StartRuntime();
    ServeWith(service_, std::move(server));
    client_runtime_ = StartRuntime();
    ChannelOptions channel;
    for (auto& each : interceptors) channel.interceptors.push_back(std::make_shared<Client>(each));
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(), std::move(channel));
    stub_ = std::make_unique<testing::Streaming::Stub>(*channel_);
  }
  void TearDown() override {
    stub_.reset();
    channel_.reset();
  }

  // Streams of each kind, from the first await to the end.
  Task<absl::Status> Count(CallOptions options, uint32_t items = 3, size_t filler = 0,
                           absl::StatusCode code = absl::StatusCode::kOk) {
    testing::CountRequest request;
    request.set_count(items);
    request.set_code(static_cast<int>(code));
    request.set_filler(std::string(filler, 'x'));
    ClientReader<StreamItem> reader = stub_->Count(request, std::move(options));
    StreamItem item;
    uint32_t read = 0;
    while (co_await reader.Read(item)) ++read;
    absl::Status status = co_await reader.Finish();
    if (status.ok() && read != items) co_return absl::DataLossError("items are missing");
    co_return status;
  }
  Task<absl::Status> Sum(CallOptions options, uint32_t items = 3) {
    ClientWriter<StreamItem, testing::Summary> writer = stub_->Sum(std::move(options));
    for (uint32_t i = 0; i < items; ++i) (void)co_await writer.Write(ItemOf(i));
    absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
    if (sum.ok() && sum->count() != items) co_return absl::DataLossError("items are missing");
    co_return sum.status();
  }
  Task<absl::Status> Echo(CallOptions options) {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo(std::move(options));
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(7)));
    if (!(co_await stream.Read()).has_value()) co_return co_await stream.Finish();
    co_return co_await stream.Finish();
  }
  SeenContext Seen() { return service_.seen.empty() ? SeenContext{} : service_.seen.back(); }

  RecordingService service_;
  std::unique_ptr<testing::Streaming::Stub> stub_;
};

// --- what the caller gives

TEST_F(StreamContextTest, ReachesTheHandlersOfAllKindsOfStreams) {
  Start();
  const RequestId id{.client = {7}, .number = 42};
  const auto options = [&] {
    return CallOptions{.metadata = {{"tenant", "blue"}, {"x-bin", "\xff"}},
                       .priority = Priority::kControl,
                       .request_id = id};
  };
  const auto expect_seen = [&] {
    EXPECT_EQ(Seen().metadata.size(), 2u);
    EXPECT_EQ(Seen().metadata.Get("tenant"), "blue");
    EXPECT_EQ(Seen().metadata.Get("x-bin"), "\xff");
    EXPECT_EQ(Seen().priority, Priority::kControl);
    EXPECT_EQ(Seen().request_id, id);
    EXPECT_EQ(Seen().trace, std::nullopt);
    service_.seen.clear();
  };
  // In the frame, at its end, and apart from it.
  for (const size_t filler : {0u, 3000u, 4000u, 4400u, 4550u, 100'000u}) {
    EXPECT_EQ(Run(Count(options(), 3, filler)), absl::OkStatus()) << filler;
    EXPECT_EQ(service_.filler_bytes, filler);
    expect_seen();
  }
  EXPECT_EQ(Run(Sum(options())), absl::OkStatus());
  expect_seen();
  EXPECT_EQ(Run(Echo(options())), absl::OkStatus());
  expect_seen();
  EXPECT_EQ(Run(Echo({})), absl::OkStatus());
  EXPECT_TRUE(Seen().metadata.empty()) << "nor is it kept for the next stream";
  EXPECT_EQ(Seen().priority, Priority::kNormal);
}

TEST_F(StreamContextTest, ALargeContextIsRefusedBeforeAnythingIsSent) {
  Start();
  // With its header, 1 KiB.
  EXPECT_EQ(Run(Echo({.metadata = Filler(1016)})), absl::OkStatus());
  EXPECT_EQ(Seen().metadata.bytes(), 1016u);
  for (const size_t bytes : {1017u, 8192u}) {
    const absl::Status status = Run(Sum({.metadata = Filler(bytes)}));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_NE(std::string(status.message()).find("1024"), std::string::npos) << status;
  }
  EXPECT_EQ(server_->stats().calls, 1u);
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u);
}

TEST_F(StreamContextTest, AContextThatMayNotBeSentFailsTheStream) {
  Start();
  EXPECT_EQ(Run(Sum({.metadata = {{"Capital", "x"}}})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run(Echo({.metadata = Filler(9000)})).code(), absl::StatusCode::kResourceExhausted);
  const absl::Status status = Run(WithTrace(Count({}), TraceContext{}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(StreamContextTest, TheServersBoundHoldsForStreams) {
  Start({}, {.max_metadata_bytes = 100});
  EXPECT_EQ(Run(Sum({.metadata = Filler(100)})), absl::OkStatus());
  const absl::Status status = Run(Sum({.metadata = Filler(101)}));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u);
}

TEST_F(StreamContextTest, TrailingMetadataComesBackWithEachEnd) {
  Start();
  bool fails = false;
  service_.before = [&](ServerContext& context) -> Task<absl::Status> {
    EXPECT_EQ(context.AddTrailingMetadata("rows", "7"), absl::OkStatus());
    co_return fails ? absl::NotFoundError("no rows") : absl::OkStatus();
  };
  CallInfo info;
  const auto expect_rows = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), fails ? absl::StatusCode::kNotFound : absl::StatusCode::kOk) << status;
    EXPECT_EQ(info.trailing_metadata.size(), 1u);
    EXPECT_EQ(info.trailing_metadata.Get("rows"), "7");
  };
  for (const bool failing : {false, true}) {
    fails = failing;
    expect_rows(Run(Count({.info = &info})));
    expect_rows(Run(Sum({.info = &info}, fails ? 0 : 3)));
    expect_rows(Run(Echo({.info = &info})));
  }
  // Behind messages, too.
  fails = false;
  EXPECT_EQ(Run(Count({.info = &info}, 3, 0, absl::StatusCode::kAborted)).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(info.trailing_metadata.size(), 1u);
  service_.before = {};
  EXPECT_EQ(Run(Echo({.info = &info})), absl::OkStatus());
  EXPECT_TRUE(info.trailing_metadata.untouched()) << "forgets that of the stream before";
}

// --- what the Task hands down

TEST_F(StreamContextTest, AStreamHasTheDeadlineOfTheTaskThatBeginsIt) {
  Start();
  const auto left = [&](Task<absl::Status> stream) -> std::optional<Duration> {
    service_.seen.clear();
    EXPECT_EQ(Run(std::move(stream)), absl::OkStatus());
    if (!Seen().deadline.is_set()) return std::nullopt;
    return Seen().deadline.when() - Clock::Real().Now();
  };
  EXPECT_EQ(left(Count({})), std::nullopt);
  EXPECT_LE(left(WithDeadline(Count({}), 1h)).value_or(9h), 1h);
  EXPECT_LE(left(WithDeadline(Sum({}), 1h)).value_or(9h), 1h);
  EXPECT_LE(left(WithDeadline(Echo({.deadline = 2h}), 1h)).value_or(9h), 1h);
  EXPECT_LE(left(WithDeadline(Echo({.deadline = 1h}), 2h)).value_or(9h), 1h);
  EXPECT_LE(left(WithDeadline(Echo({.deadline = Deadline::None()}), 1h)).value_or(9h), 1h);
  EXPECT_EQ(left(WithDeadline(Echo({.inherit = Inherit::kNothing}), 1h)), std::nullopt);
}

TEST_F(StreamContextTest, ADeadlineThatIsInheritedEndsTheStreamForBothSides) {
  Start();
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Ignore();
    const auto begin = [&]() -> Task<absl::Status> { co_return co_await stream.Write(ItemOf(1)); };
    VERBENA_CO_RETURN_IF_ERROR(co_await WithDeadline(begin(), 50ms));
    // This Task has no deadline.
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kDeadlineExceeded);
  Eventually([&] { return service_.waiting == 0; }, "the handler has ended");
}

TEST_F(StreamContextTest, EachStreamOfATraceHasASpanOfItsOwn) {
  Start();
  TraceContext trace = TraceContext::Root(/*sampled=*/true);
  trace.state = "vendor=x";
  EXPECT_EQ(Run(WithTrace(Count({}), trace)), absl::OkStatus());
  EXPECT_EQ(Run(WithTrace(Echo({.metadata = {{"a", "b"}}}), trace)), absl::OkStatus());
  EXPECT_EQ(Run(WithTrace(Sum({.inherit = Inherit::kNothing}), trace)), absl::OkStatus());
  ASSERT_EQ(service_.seen.size(), 3u);
  const TraceContext first = service_.seen[0].trace.value_or(TraceContext{});
  const TraceContext second = service_.seen[1].trace.value_or(TraceContext{});
  EXPECT_EQ(first.trace_id, trace.trace_id);
  EXPECT_EQ(second.trace_id, trace.trace_id);
  EXPECT_EQ(first.state, trace.state);
  EXPECT_NE(first.span_id, trace.span_id);
  EXPECT_NE(first.span_id, second.span_id);
  EXPECT_EQ(service_.seen[1].metadata.Get("a"), "b");
  EXPECT_EQ(service_.seen[2].trace, std::nullopt);
}

TEST_F(StreamContextTest, CallsAndStreamsOfAStreamsHandlerInheritFromIt) {
  Start();
  Channel again(*server_runtime_, server_->address());
  const testing::Streaming::Stub self(again);
  bool nested = false;
  service_.before = [&](ServerContext&) -> Task<absl::Status> {
    if (std::exchange(nested, true)) co_return absl::OkStatus();
    StreamItem request;
    absl::StatusOr<StreamItem> said = co_await self.Say(request);
    VERBENA_CO_RETURN_IF_ERROR(said.status());
    ClientWriter<StreamItem, testing::Summary> writer = self.Sum();
    co_return (co_await writer.Finish()).status();
  };
  const TraceContext trace = TraceContext::Root(true);
  EXPECT_EQ(Run(WithTrace(Echo({.deadline = 1h}), trace)), absl::OkStatus());
  ASSERT_EQ(service_.seen.size(), 3u);
  for (const SeenContext& each : service_.seen) {
    EXPECT_TRUE(each.deadline.is_set());
    ASSERT_TRUE(each.trace.has_value());
    EXPECT_EQ(each.trace->trace_id, trace.trace_id);
  }
  EXPECT_NE(service_.seen[1].trace->span_id, service_.seen[2].trace->span_id);
}

TEST_F(StreamContextTest, ATaskThatIsCancelledBeginsNoStream) {
  Start();
  const auto run = [&]() -> Task<absl::Status> {
    CancelScope scope;
    scope.Request();
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo();
    const auto use = [&]() -> Task<absl::Status> {
      EXPECT_FALSE((co_await stream.Read()).has_value());
      EXPECT_EQ((co_await stream.Write(ItemOf(1))).code(), absl::StatusCode::kCancelled);
      co_return co_await stream.WritesDone();
    };
    EXPECT_EQ((co_await use().In(&scope)).code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(server_->stats().calls, 0u);
    // Another Task may still begin it.
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(2)));
    EXPECT_EQ((co_await stream.Read()).value_or(StreamItem()).number(), 2u);
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// --- interceptors

TEST_F(StreamContextTest, InterceptorsRunAroundStreamsInTheOrderOfTheList) {
  std::string order;
  const auto named = [&order](std::string name) -> Client::Function {
    return [&order, name](ClientCallView&, ClientNext next) -> Task<absl::Status> {
      order += name + "> ";
      absl::Status status = co_await next();
      order += "<" + name + (status.ok() ? " " : "! ");
      co_return status;
    };
  };
  Start({named("a"), named("b")});
  for (int i = 0; i < 2; ++i) {  // over a link that is made, and one that is there
    EXPECT_EQ(Run(Count({})), absl::OkStatus());
    EXPECT_EQ(Run(Sum({})), absl::OkStatus());
    EXPECT_EQ(Run(Echo({})), absl::OkStatus());
    EXPECT_EQ(order, "a> b> <b <a a> b> <b <a a> b> <b <a ");
    order.clear();
  }
  EXPECT_EQ(Run(Count({}, 3, 0, absl::StatusCode::kAborted)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(order, "a> b> <b! <a! ");
}

TEST_F(StreamContextTest, InterceptorsReadAndChangeAStreamsContext) {
  const TraceContext root = TraceContext::Root(true);
  Start({[&](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    EXPECT_EQ(call.metadata.Get("tenant"), "blue");
    EXPECT_EQ(call.target(), server_->address());
    EXPECT_EQ(static_cast<const testing::CountRequest&>(call.request()).filler().size(), 9u);
    EXPECT_TRUE(call.deadline().is_set());
    EXPECT_EQ(call.trace.value_or(TraceContext{}).trace_id, root.trace_id);
    const TraceContext* parent = (co_await CurrentContext()).trace();
    EXPECT_TRUE(parent != nullptr && *parent == root) << "the span that the stream is made in";
    call.metadata.Remove("tenant");
    call.metadata.Add("token", "secret");
    call.priority = Priority::kBackground;
    absl::Status status = co_await next();
    EXPECT_EQ(call.trailing_metadata().Get("rows"), "7") << "though nobody has a CallInfo";
    co_return status;
  }});
  service_.before = [](ServerContext& context) -> Task<absl::Status> {
    co_return context.AddTrailingMetadata("rows", "7");
  };
  EXPECT_EQ(Run(WithTrace(Count({.deadline = 1h, .metadata = {{"tenant", "blue"}}}, 3, 9), root)),
            absl::OkStatus());
  EXPECT_EQ(Seen().metadata.size(), 1u);
  EXPECT_EQ(Seen().metadata.Get("token"), "secret");
  EXPECT_EQ(Seen().priority, Priority::kBackground);
  EXPECT_EQ(Seen().trace.value_or(TraceContext{}).trace_id, root.trace_id);
}

TEST_F(StreamContextTest, MetadataThatAnInterceptorAddsIsChecked) {
  size_t bytes = 0;
  Start({[&](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    bytes == 0 ? call.metadata.Add("Token", "x") : call.metadata.Add("t", std::string(bytes, 'x'));
    absl::Status status = co_await next();
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    co_return status;
  }});
  EXPECT_EQ(Run(Echo({})).code(), absl::StatusCode::kInvalidArgument);
  bytes = 2000;
  EXPECT_EQ(Run(Echo({})).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(StreamContextTest, AStreamThatAnInterceptorRefusesIsNotExecuted) {
  Outcome seen = Outcome::kMaybeExecuted;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
           absl::Status status = co_await next();
           seen = OutcomeOf(status);
           co_return status;
         },
         [](ClientCallView&, ClientNext) -> Task<absl::Status> {
           co_return absl::UnavailableError("injected");
         }});
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo();
    EXPECT_FALSE((co_await stream.Read()).has_value());
    EXPECT_EQ((co_await stream.Write(ItemOf(1))).code(), absl::StatusCode::kUnavailable);
    co_return co_await stream.Finish();
  };
  for (const absl::Status& status : {Run(run()), Run(Count({})), Run(Sum({}))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_EQ(seen, Outcome::kNotExecuted);
  }
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(StreamContextTest, AnInterceptorMayAnswerAStream) {
  Start({[](ClientCallView& call, ClientNext) -> Task<absl::Status> {
    if (call.method().streams == Streams::kClient) {
      static_cast<testing::Summary&>(call.reply()).set_count(3);
    }
    co_return absl::OkStatus();
  }});
  EXPECT_EQ(Run(Sum({})), absl::OkStatus());
  EXPECT_EQ(Run(Count({}, 0)), absl::OkStatus());
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(StreamContextTest, AnInterceptorSeesTheReplyAndMayTurnTheStatusIntoAnother) {
  Start({[](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    absl::Status status = co_await next();
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(static_cast<testing::Summary&>(call.reply()).count(), 3u);
    co_return absl::AbortedError("seen");
  }});
  const absl::Status status = Run(Sum({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
}

TEST_F(StreamContextTest, OneThatThrowsEndsItsStreamAlone) {
  Start({[](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    if (call.metadata.empty()) throw std::runtime_error("out of cheese");
    co_return co_await next();
  }});
  const absl::Status status = Run(Echo({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(Run(Echo({.metadata = {{"a", "b"}}})), absl::OkStatus());
}

TEST_F(StreamContextTest, ADeadlineEndsTheWaitsOfInterceptors) {
  int waited = 0;
  Start({[&](ClientCallView&, ClientNext) -> Task<absl::Status> {
    absl::Status slept = co_await SleepUntil(kNever);
    ++waited;
    co_return slept;
  }});
  EXPECT_EQ(Run(Echo({.deadline = 20ms})).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Run(Sum({.deadline = 20ms})).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waited, 2);
  EXPECT_EQ(server_->stats().calls, 0u);
}

// A Read and a Write wait for the interceptors, and both go on.
TEST_F(StreamContextTest, AllAwaitsWaitForTheInterceptors) {
  Event go;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await go.Wait());
    co_return co_await next();
  }});
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo();
    const auto open = [&]() -> Task<absl::Status> {
      EXPECT_EQ(server_->stats().calls, 0u);
      go.Set();
      co_return absl::OkStatus();
    };
    auto [item, written, opened] =
        co_await WhenAll(stream.Read().AsTask(), stream.Write(ItemOf(5)).AsTask(), open());
    EXPECT_EQ(written, absl::OkStatus());
    EXPECT_EQ(item.value_or(StreamItem()).number(), 5u);
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamContextTest, ACancelledFinishEndsTheInterceptorsFirst) {
  bool early = false;
  std::vector<absl::StatusCode> seen;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    absl::Status status = early ? co_await SleepUntil(kNever) : co_await next();
    seen.push_back(status.code());
    (void)co_await Yield();
    seen.push_back(absl::StatusCode::kOk);
    co_return status;
  }});
  const auto run = [&]() -> Task<absl::Status> {
    CancelScope scope;
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Ignore();
    const auto finish = [&]() -> Task<absl::Status> { co_return co_await stream.Finish(); };
    const auto cancel = [&]() -> Task<absl::Status> {
      while (!early && service_.waiting == 0) (void)co_await Sleep(1ms);
      scope.Request();
      co_return absl::OkStatus();
    };
    const auto both = [&]() -> Task<absl::Status> { co_return co_await finish().In(&scope); };
    auto [finished, cancelled] = co_await WhenAll(both(), cancel());
    EXPECT_EQ(seen.size(), 2u) << "they have ended";
    co_return finished;
  };
  for (const bool first : {false, true}) {
    early = first;
    seen.clear();
    EXPECT_EQ(Run(run()).code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(seen, (std::vector{absl::StatusCode::kCancelled, absl::StatusCode::kOk}));
  }
  Eventually([&] { return service_.waiting == 0; }, "the handler has ended");
}

// The Task of the interceptors is destroyed, as that of a unary call is.
TEST_F(StreamContextTest, AStreamThatIsDestroyedTakesItsInterceptorsAlong) {
  int begun = 0;
  int ended = 0;
  int destroyed = 0;
  struct Guard {
    int& count;
    ~Guard() { ++count; }
  };
  bool early = false;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    const Guard guard{destroyed};
    ++begun;
    absl::Status status = early ? co_await SleepUntil(kNever) : co_await next();
    ++ended;
    co_return status;
  }});
  const auto run = [&]() -> Task<absl::Status> {
    auto stream = std::make_unique<ClientReaderWriter<StreamItem, StreamItem>>(stub_->Ignore());
    Task<absl::Status> finish = stream->Finish();
    const auto destroy = [&]() -> Task<absl::Status> {
      while (begun == 0 || (!early && service_.waiting == 0)) (void)co_await Sleep(1ms);
      stream.reset();
      co_return absl::OkStatus();
    };
    auto [finished, done] = co_await WhenAll(std::move(finish), destroy());
    co_return finished;
  };
  for (const bool first : {false, true}) {
    early = first;
    begun = destroyed = 0;
    const absl::Status status = Run(run());
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_EQ(OutcomeOf(status), early ? Outcome::kNotExecuted : Outcome::kMaybeExecuted);
    EXPECT_EQ(destroyed, 1);
    EXPECT_EQ(ended, 0);
    Eventually([&] { return service_.waiting == 0; }, "the handler has ended");
  }
}

TEST_F(StreamContextTest, AStreamMayBeDestroyedWhileItsFirstAwaitsWaitForInterceptors) {
  Event never;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await never.Wait());
    co_return co_await next();
  }});
  const auto run = [&]() -> Task<absl::Status> {
    auto stream = std::make_unique<ClientReaderWriter<StreamItem, StreamItem>>(stub_->Echo());
    const auto read = [&]() -> Task<bool> { co_return (co_await stream->Read()).has_value(); };
    const auto write = [&]() -> Task<absl::Status> { co_return co_await stream->Write(ItemOf(1)); };
    const auto destroy = [&]() -> Task<absl::Status> {
      VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(1ms));
      stream.reset();
      co_return absl::OkStatus();
    };
    auto [has_message, written, destroyed] = co_await WhenAll(read(), write(), destroy());
    EXPECT_FALSE(has_message);
    EXPECT_EQ(destroyed, absl::OkStatus());
    co_return written;
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server_->stats().calls, 0u);
}

// An interceptor may drop the Task of next() before it has ended, as one with a patience does.
TEST_F(StreamContextTest, AnInterceptorThatGivesUpEndsTheStream) {
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    const auto served = [this]() -> Task<absl::Status> {
      while (service_.waiting == 0) (void)co_await Sleep(1ms);
      co_return absl::AbortedError("no patience");
    };
    auto first = co_await WhenAny(next(), served());
    co_return first.index() == 1 ? std::get<1>(std::move(first)) : absl::OkStatus();
  }});
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Ignore();
    EXPECT_FALSE((co_await stream.Read()).has_value());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kAborted);
  Eventually([&] { return service_.waiting == 0; }, "the handler has ended");
}

}  // namespace
}  // namespace verbena::internal
