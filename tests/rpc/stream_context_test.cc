// Streams carry call context as unary calls do: what the caller gives, and what the Task that
// begins the stream hands down. Trailing metadata comes back with any end.

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "tests/rpc/stream_context_fixture.h"

namespace verbena::internal {
namespace {

using namespace std::chrono_literals;
using testing::StreamItem;

// Metadata of `bytes`, as they count, under the key "fill".
Metadata Filler(size_t bytes) {
  return {{"fill", std::string(bytes - Metadata::kEntryBytes - 4, 'f')}};
}

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

TEST_F(StreamContextTest, AContextOfAnySizeIsThereWhenTheHandlerRuns) {
  Start();
  // With its header, 1 KiB, and one byte more; then about a frame, and as much as is allowed.
  for (const size_t bytes : {1016u, 1017u, 4400u, 4560u, 8192u}) {
    const auto options = [bytes] {
      return CallOptions{.metadata = Filler(bytes), .priority = Priority::kControl};
    };
    EXPECT_EQ(Run(Echo(options())), absl::OkStatus());
    EXPECT_EQ(Run(Sum(options(), 100)), absl::OkStatus());
    // Beside a request in the frame, and one that is apart.
    for (const size_t filler : {0u, 4500u, 100'000u}) {
      EXPECT_EQ(Run(Count(options(), 3, filler)), absl::OkStatus());
      EXPECT_EQ(service_.filler_bytes, filler);
    }
    EXPECT_EQ(service_.seen.size(), 5u);
    for (const SeenContext& seen : std::exchange(service_.seen, {})) {
      EXPECT_EQ(seen.metadata.bytes(), bytes);
      EXPECT_EQ(seen.priority, Priority::kControl);
    }
  }
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u);
}

TEST_F(StreamContextTest, AServersInterceptorsSeeALargeContext) {
  size_t seen = 0;
  size_t request_bytes = 0;
  class ContextReader final : public ServerInterceptor {
   public:
    ContextReader(size_t& seen, size_t& request_bytes)
        : seen_(seen), request_bytes_(request_bytes) {}
    Task<absl::Status> Intercept(ServerCallView& call, ServerNext next) override {
      seen_ = call.metadata().bytes();
      request_bytes_ = call.request().ByteSizeLong();
      co_return co_await next();
    }

   private:
    size_t& seen_;
    size_t& request_bytes_;
  };
  Start({}, {.interceptors = {std::make_shared<ContextReader>(seen, request_bytes)}});
  EXPECT_EQ(Run(Echo({.metadata = Filler(5000)})), absl::OkStatus());
  EXPECT_EQ(seen, 5000u);
  EXPECT_EQ(Run(Count({.metadata = Filler(6000)}, 3, 100)), absl::OkStatus());
  EXPECT_EQ(seen, 6000u);
  EXPECT_GT(request_bytes, 100u);
}

TEST_F(StreamContextTest, AStreamThatDoesNotBeginEmptiesItsCallInfo) {
  Start();
  for (const bool payload : {false, true}) {
    CallInfo info{.elapsed = 1h, .request_bytes = 3, .reply_bytes = 3};
    info.trailing_metadata.Add("rows", "7");
    CallOptions options{.info = &info};
    if (payload) {
      options.max_response_payload = 1;
    } else {
      options.metadata = Filler(9000);
    }
    EXPECT_FALSE(Run(Sum(std::move(options))).ok());
    EXPECT_LT(info.elapsed, 1h);
    EXPECT_EQ(info.request_bytes, 0u);
    EXPECT_EQ(info.reply_bytes, 0u);
    EXPECT_TRUE(info.trailing_metadata.untouched());
  }
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

// Its bound is checked by what the request tells, and again once the block is here.
TEST_F(StreamContextTest, TheServersBoundHoldsForAContextBesideTheMessages) {
  Start({}, {.max_metadata_bytes = 2000});
  EXPECT_EQ(Run(Sum({.metadata = Filler(2000)})), absl::OkStatus());
  for (const size_t bytes : {2001u, 8000u}) {
    const absl::Status status = Run(Sum({.metadata = Filler(bytes)}));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  }
  EXPECT_EQ(service_.seen.size(), 1u);
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u);
}

TEST_F(StreamContextTest, LargeTrailingMetadataComesBackWithAnyFailure) {
  Start();
  size_t details = 0;
  service_.before = [&](ServerContext& context) -> Task<absl::Status> {
    EXPECT_EQ(context.AddTrailingMetadata("fill", std::string(2000, 'f')), absl::OkStatus());
    absl::Status status = absl::NotFoundError("no rows");
    const std::string detail(details, 'd');
    status.SetPayload("type.example/detail", absl::Cord(detail));
    co_return status;
  };
  CallInfo info;
  for (const size_t bytes : {10u, 100'000u}) {
    details = bytes;
    const absl::Status status = Run(Echo({.info = &info}));
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_EQ(status.GetPayload("type.example/detail"), std::string(bytes, 'd'));
    EXPECT_EQ(info.trailing_metadata.Get("fill").value_or("").size(), 2000u);
  }
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
  // To connect may take longer than the deadline.
  ASSERT_EQ(Run(channel_->Connect()), absl::OkStatus());
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
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.WritesDone());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

}  // namespace
}  // namespace verbena::internal
