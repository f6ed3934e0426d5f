// A call's context reaches its handler, however it travels, before the handler runs; trailing
// metadata comes back. What may not be sent is refused at the caller, what is too much for the
// server at the server, and a block that is malformed ends its link alone.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/context_service.h"
#include "tests/rpc/dedupe_testing.verbena.pb.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/support/watched.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/client/attempt.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace context_test {

bool Mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

// Metadata of `bytes`, as they count, under the key "fill".
Metadata Filler(size_t bytes) {
  return {{"fill", std::string(bytes - Metadata::kEntryBytes - 4, 'f')}};
}

class CallContextTest : public ContextTest {
 protected:
  absl::Status Echo(CallOptions options, size_t bytes = 5) {
    return Run(EchoWith(std::move(options), bytes));
  }
};

TEST_F(CallContextTest, ReachesTheHandler) {
  StartBoth();
  const RequestId id{.client = {7}, .number = 42};
  EXPECT_EQ(Echo({.metadata = {{"tenant", "blue"}, {"hop", "a"}, {"hop", "b"}, {"x-bin", "\xff"}},
                  .priority = Priority::kControl,
                  .request_id = id}),
            absl::OkStatus());
  const SeenContext& seen = service_.seen;
  EXPECT_EQ(seen.metadata.size(), 4u);
  EXPECT_EQ(seen.metadata.Get("tenant"), "blue");
  EXPECT_EQ(seen.metadata.All("hop"), (std::vector<std::string_view>{"a", "b"}));
  EXPECT_EQ(seen.metadata.Get("x-bin"), "\xff");
  EXPECT_EQ(seen.priority, Priority::kControl);
  EXPECT_EQ(seen.request_id, id);
  EXPECT_EQ(seen.trace, std::nullopt);
}

TEST_F(CallContextTest, IsNotKeptForTheNextCall) {
  StartBoth();
  EXPECT_EQ(Echo({.metadata = {{"tenant", "blue"}}, .priority = Priority::kBackground}),
            absl::OkStatus());
  EXPECT_EQ(Echo({}), absl::OkStatus());
  EXPECT_TRUE(service_.seen.metadata.empty());
  EXPECT_EQ(service_.seen.priority, Priority::kNormal);
}

TEST_F(CallContextTest, EachCallOfATraceHasASpanOfItsOwn) {
  StartBoth();
  TraceContext trace = TraceContext::Root(/*sampled=*/true);
  trace.state = "vendor=x";
  const auto traced = [&]() {
    EXPECT_EQ(Run(WithTrace(EchoWith({}), trace)), absl::OkStatus());
    return service_.seen.trace.value_or(TraceContext{});
  };
  const TraceContext first = traced();
  const TraceContext second = traced();
  EXPECT_EQ(first.trace_id, trace.trace_id);
  EXPECT_EQ(first.state, trace.state);
  EXPECT_TRUE(first.sampled());
  EXPECT_NE(first.span_id, trace.span_id);
  EXPECT_NE(first.span_id, second.span_id);
  EXPECT_EQ(Run(WithTrace(EchoWith({.inherit = Inherit::kNothing}), trace)), absl::OkStatus());
  EXPECT_EQ(service_.seen.trace, std::nullopt);
}

TEST_F(CallContextTest, ATraceThatIsNoneFailsTheCall) {
  StartBoth();
  TraceContext trace = TraceContext::Root(false);
  trace.state = "no state";
  EXPECT_EQ(Run(WithTrace(EchoWith({}), trace)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run(WithTrace(EchoWith({}), TraceContext{})).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server_->stats().calls, 0u);
}

// --- trailing metadata

TEST_F(CallContextTest, TrailingMetadataComesBackWithAReplyAndWithAFailure) {
  StartBoth();
  bool fails = false;
  service_.handler = [&](ServerContext& context, const testing::EchoRequest&,
                         testing::EchoReply&) -> Task<absl::Status> {
    EXPECT_TRUE(context.trailing_metadata().empty());
    EXPECT_EQ(context.AddTrailingMetadata("rows", "7"), absl::OkStatus());
    EXPECT_EQ(context.AddTrailingMetadata("mac-bin", "\xff"), absl::OkStatus());
    EXPECT_EQ(context.trailing_metadata().size(), 2u);
    co_return fails ? absl::NotFoundError("no row") : absl::OkStatus();
  };
  for (const size_t bytes : {5u, 100'000u}) {
    for (const bool failing : {false, true}) {
      fails = failing;
      CallInfo info;
      const absl::Status status = Echo({.info = &info}, bytes);
      EXPECT_EQ(status.code(), fails ? absl::StatusCode::kNotFound : absl::StatusCode::kOk)
          << status;
      EXPECT_EQ(info.trailing_metadata.size(), 2u);
      EXPECT_EQ(info.trailing_metadata.Get("rows"), "7");
      EXPECT_EQ(info.trailing_metadata.Get("mac-bin"), "\xff");
    }
  }
  EXPECT_EQ(Echo({}).code(), absl::StatusCode::kNotFound) << "nobody has to take it";
}

TEST_F(CallContextTest, ACallInfoForgetsTheTrailingMetadataOfTheCallBefore) {
  StartBoth();
  bool adds = true;
  service_.handler = [&](ServerContext& context, const testing::EchoRequest&,
                         testing::EchoReply&) -> Task<absl::Status> {
    if (adds) {
      EXPECT_EQ(context.AddTrailingMetadata("rows", "7"), absl::OkStatus());
    }
    co_return absl::OkStatus();
  };
  CallInfo info;
  EXPECT_EQ(Echo({.info = &info}), absl::OkStatus());
  EXPECT_EQ(info.trailing_metadata.size(), 1u);
  adds = false;
  EXPECT_EQ(Echo({.info = &info}), absl::OkStatus());
  EXPECT_TRUE(info.trailing_metadata.untouched());
}

TEST_F(CallContextTest, ACallThatIsNotSentLeavesNothingOfTheCallBeforeInItsCallInfo) {
  StartServer();
  StartClient({.max_metadata_bytes = 100});
  CallInfo info{.elapsed = std::chrono::hours(1), .request_bytes = 3, .reply_bytes = 3};
  info.trailing_metadata.Add("rows", "7");
  const absl::Status refused = Echo({.info = &info, .metadata = Filler(200)}, 50);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Mentions(refused, "200 bytes (first key \"fill\")")) << refused;
  EXPECT_LT(info.elapsed, std::chrono::hours(1));
  EXPECT_EQ(info.request_bytes, 52u);
  EXPECT_EQ(info.reply_bytes, 0u);
  EXPECT_TRUE(info.trailing_metadata.untouched());
}

TEST_F(CallContextTest, TrailingMetadataIsBounded) {
  StartServer({.max_metadata_bytes = 100});
  StartClient();
  service_.handler = [](ServerContext& context, const testing::EchoRequest&,
                        testing::EchoReply&) -> Task<absl::Status> {
    EXPECT_EQ(context.AddTrailingMetadata("A", "x").code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(context.AddTrailingMetadata("verbena-x", "x").code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(context.AddTrailingMetadata("a", std::string(95, 'x')), absl::OkStatus());
    const absl::Status more = context.AddTrailingMetadata("b", "");
    EXPECT_EQ(more.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(Mentions(more, "\"b\"") && Mentions(more, "100")) << more;
    co_return absl::OkStatus();
  };
  CallInfo info;
  EXPECT_EQ(Echo({.info = &info}), absl::OkStatus());
  EXPECT_EQ(info.trailing_metadata.bytes(), 100u);
}

// A failure's text gives way to the metadata, and a reply that no longer fits travels one-sided.
TEST_F(CallContextTest, TrailingMetadataLeavesRoomForWhatFollowsIt) {
  StartBoth();
  const size_t body = MaxBodyBytes(LinkLimits{}.eager_bytes);
  bool fails = false;
  service_.handler = [&](ServerContext& context, const testing::EchoRequest&,
                         testing::EchoReply&) -> Task<absl::Status> {
    EXPECT_EQ(context.AddTrailingMetadata("fill", std::string(body / 2 - 8, 'x')),
              absl::OkStatus());
    EXPECT_EQ(context.AddTrailingMetadata("a", "").code(), absl::StatusCode::kResourceExhausted);
    co_return fails ? absl::InternalError(std::string(body, 't')) : absl::OkStatus();
  };
  for (const size_t bytes : {body / 4, body / 2, body - 64}) {
    CallInfo info;
    EXPECT_EQ(Echo({.info = &info}, bytes), absl::OkStatus()) << bytes;
    EXPECT_EQ(info.trailing_metadata.size(), 1u);
  }
  fails = true;
  CallInfo info;
  const absl::Status status = Echo({.info = &info});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_GT(status.message().size(), body / 3);
  EXPECT_EQ(info.trailing_metadata.size(), 1u);
}

// --- bounds

TEST_F(CallContextTest, TheCallerHearsWhatMayNotBeSent) {
  StartBoth();
  ASSERT_EQ(Echo({}), absl::OkStatus());
  struct Case {
    Metadata metadata;
    absl::StatusCode code;
    const char* named;
  };
  const std::vector<Case> cases = {
      {{{"Tenant", "x"}}, absl::StatusCode::kInvalidArgument, "\"Tenant\""},
      {{{"ten\xc3\xa4nt", "x"}}, absl::StatusCode::kInvalidArgument, "\\xc3\\xa4"},
      {{{"tenant", "\xff"}}, absl::StatusCode::kInvalidArgument, "\"tenant\""},
      {{{"verbena-id", "x"}}, absl::StatusCode::kInvalidArgument, "\"verbena-id\""},
      {Filler(8193), absl::StatusCode::kResourceExhausted, "max_metadata_bytes allows 8192"},
      {Filler(8193), absl::StatusCode::kResourceExhausted, "\"fill\""},
      {Metadata({{"huge", std::string(40'000, 'x')}}), absl::StatusCode::kResourceExhausted,
       "\"huge\""},
  };
  for (const Case& each : cases) {
    const absl::Status status = Echo({.metadata = each.metadata});
    EXPECT_EQ(status.code(), each.code) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_TRUE(Mentions(status, each.named)) << status;
  }
  EXPECT_EQ(server_->stats().calls, 1u);
  EXPECT_EQ(server_->stats().refused, 0u);
}

TEST_F(CallContextTest, TheServersBoundRefusesTheCallAndKeepsTheLink) {
  StartServer({.max_metadata_bytes = 2000});
  StartClient({.max_metadata_bytes = 20'000});
  EXPECT_EQ(Echo({.metadata = Filler(500)}), absl::OkStatus());
  EXPECT_EQ(Echo({.metadata = Filler(2000)}), absl::OkStatus()) << "it travels one-sided";
  for (const size_t bytes : {2001u, 2600u, 20'000u}) {
    const absl::Status status = Echo({.metadata = Filler(bytes)});
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_TRUE(Mentions(status, "takes 2000 bytes")) << status;
  }
  EXPECT_EQ(service_.seen.metadata.bytes(), 2000u);
  EXPECT_EQ(Echo({}), absl::OkStatus());
  EXPECT_EQ(server_runtime_->endpoint_stats(0).links_lost, 0u);
}

TEST_F(CallContextTest, TheServersBoundHoldsForWhatIsInTheFrame) {
  StartServer({.max_metadata_bytes = 100});
  StartClient();
  EXPECT_EQ(Echo({.metadata = Filler(100)}), absl::OkStatus());
  EXPECT_EQ(Echo({.metadata = Filler(101)}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server_->stats().refused, 1u);
  EXPECT_EQ(Echo({.metadata = Filler(101)}, 100'000).code(), absl::StatusCode::kResourceExhausted)
      << "the request travels, its context is in the frame";
}

TEST_F(CallContextTest, AnOptionOutOfItsRangeIsRefused) {
  server_runtime_ = StartRuntime();
  EXPECT_EQ(
      Server::Start(*server_runtime_, {&service_}, {.max_metadata_bytes = Metadata::kMaxBytes + 1})
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      Server::Start(*server_runtime_, {&service_}, {.max_metadata_bytes = Metadata::kMaxBytes})
          .ok());
  EXPECT_DEATH(
      Channel(*server_runtime_, "127.0.0.1:1", {.max_metadata_bytes = Metadata::kMaxBytes + 1}),
      "max_metadata_bytes is 32769");
}

// --- large contexts

TEST_F(CallContextTest, AContextOfAnySizeIsThereWhenTheHandlerRuns) {
  StartBoth();
  const TraceContext trace = TraceContext::Root(true);
  for (const size_t context : {8u, 900u, 1000u, 1100u, 4000u, 8192u}) {
    for (const size_t request : {0u, 3000u, 4000u, 4090u, 100'000u}) {
      const absl::Status status =
          Run(WithTrace(EchoWith({.metadata = Filler(context)}, request), trace));
      EXPECT_EQ(status, absl::OkStatus()) << context << " and " << request;
      EXPECT_EQ(service_.seen.metadata.bytes(), context);
      EXPECT_EQ(service_.seen.trace->trace_id, trace.trace_id);
    }
  }
}

TEST_F(CallContextTest, FitsTheSmallestFrames) {
  RuntimeOptions small;
  small.limits.eager_bytes = 1024;
  StartServer({}, small);
  StartClient({}, small);
  for (const size_t context : {8u, 600u, 700u, 900u, 1000u, 8192u}) {
    EXPECT_EQ(Echo({.metadata = Filler(context)}, 300), absl::OkStatus()) << context;
    EXPECT_EQ(service_.seen.metadata.bytes(), context);
  }
}

class PayloadContextTest : public PayloadFixture {};

TEST_F(PayloadContextTest, TravelsBesideAPayload) {
  StartBoth();
  const auto swap = [this](size_t context, size_t payload) -> Task<absl::Status> {
    testing::PutRequest request;
    WithPayload<testing::PutReply> reply;
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(payload));
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Swap(
        request, reply, {.request_payload = std::move(buffer), .metadata = Filler(context)}));
    EXPECT_EQ(reply.payload.size(), payload);
    co_return absl::OkStatus();
  };
  for (const size_t context : {8u, 1000u, 8192u}) {
    for (const size_t payload : {1u, 5000u, 100'000u}) {
      EXPECT_EQ(Run(swap(context, payload)), absl::OkStatus()) << context << " and " << payload;
    }
  }
  ExpectNothingHeld();
}

// --- blocks that are malformed

RogueFrame ContextRequest(std::string body, uint8_t flags = kFrameHasContext) {
  RogueFrame frame = Request("verbena.testing.Testing/Echo", 0, 0, std::move(body));
  frame.header.flags = flags;
  return frame;
}

std::string Block(const CallContext& context) {
  std::string block(context.encoded_bytes(), '\0');
  context.Encode(block.data());
  return block;
}

std::string Travelling(size_t bytes) {
  std::string header(kContextHeaderBytes, '\0');
  EncodeTravellingContext(bytes, header.data());
  return header;
}

struct Malformed {
  const char* name;
  RogueFrame frame;
};

std::vector<Malformed> MalformedRequests() {
  const std::string good = Block({.metadata = {{"key", "value"}}});
  std::string upper = good;
  upper[8 + 4] = 'K';
  std::string longer = good;
  longer[8] = 100;
  std::string flags = good;
  flags[4] = 16;
  const std::string bulk(48, '\0');
  constexpr uint8_t kBoth = kFrameHasContext | kFrameHasBulk;
  return {
      {"NoBlock", ContextRequest("")},
      {"CutShort", ContextRequest(good.substr(0, good.size() - 1))},
      {"HeaderCutShort", ContextRequest(good.substr(0, 7))},
      {"UnknownFlag", ContextRequest(flags)},
      {"NameOfNoCall", ContextRequest(Block({.dedupe = DedupeName{}}))},
      {"NameThatAcknowledgesItself",
       ContextRequest(Block(
           {.dedupe = DedupeName{.id = {.client = {1}, .number = 1}, .acknowledged_below = 2}}))},
      {"KeyInCapitals", ContextRequest(upper)},
      {"KeyPastTheEnd", ContextRequest(longer)},
      {"TooLargeForAFrame", ContextRequest(Block({.metadata = Filler(kMaxContextInFrame - 7)}))},
      {"TravelsWithNothing", ContextRequest(Travelling(2000))},
      {"TravelsInAnEmptyMessage", ContextRequest(Travelling(2000) + bulk, kBoth)},
      {"BulkCutShortBehindIt", ContextRequest(good + bulk.substr(1), kBoth)},
      {"HugeThatTravels", ContextRequest(Travelling(1u << 20) + bulk, kBoth)},
  };
}

class MalformedContextTest : public ContextTest, public ::testing::WithParamInterface<Malformed> {};

TEST_P(MalformedContextTest, EndsItsOwnLinkAlone) {
  StartBoth();
  ASSERT_EQ(Run(EchoWith({.metadata = {{"a", "b"}}})), absl::OkStatus());
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  RogueFrame frame = GetParam().frame;
  frame.header.method = RogueMethods::NumberOf("verbena.testing.Testing/Echo");
  rogue.Send(EncodeSend(kCorrect, {frame}));
  EXPECT_TRUE(rogue.IsDropped());
  EXPECT_EQ(Run(EchoWith({.metadata = {{"a", "b"}}})), absl::OkStatus());
  EXPECT_EQ(server_->stats().calls, 2u);
}

INSTANTIATE_TEST_SUITE_P(Client, MalformedContextTest, ::testing::ValuesIn(MalformedRequests()),
                         [](const auto& info) { return info.param.name; });

// A call of no name.
struct BrokenContext final : ContextSource {
  CallContext Start() override { return {.metadata = Filler(2000), .dedupe = DedupeName{}}; }
};

// A block that the server reads from the client's memory is checked there.
TEST_F(CallContextTest, AMalformedBlockThatTravelledEndsItsLinkAndRunsNoHandler) {
  StartBoth();
  ASSERT_EQ(Echo({.metadata = Filler(8)}), absl::OkStatus());
  const MethodDescriptor method("verbena.testing.Testing/Echo", Idempotency::kUnknown);
  const auto broken = [&]() -> Task<absl::Status> {
    testing::EchoRequest request;
    testing::EchoReply reply;
    ClientChannel& channel = CoreOf(*channel_);
    CallOptions options;
    CallBuffers buffers(options, {});
    BrokenContext context;
    const CallSpec spec{.channel = &channel,
                        .method = method,
                        .request = request,
                        .reply = reply,
                        .options = options,
                        .buffers = buffers,
                        .may_repeat = false,
                        .context_source = &context};
    co_return co_await OverConnections(ConnectionUse(*channel.Here()), spec);
  };
  const absl::Status status = Run(broken());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(server_runtime_->endpoint_stats(0).links_lost, 1u);
  EXPECT_EQ(service_.seen.metadata.bytes(), 8u) << "of the call before";
  EXPECT_EQ(Echo({}), absl::OkStatus()) << "over another link";
}

// Answers one call of a correct client with `body` as its context block; returns how it ended.
class RogueAnswerTest : public ContextTest {
 protected:
  absl::Status Answered(const std::string& body) {
    client_runtime_ = StartRuntime();
    std::unique_ptr<Runtime> rogue_runtime = StartRuntime();
    std::unique_ptr<MessageListener> listener =
        *CoreOf(*rogue_runtime).shard(0).bootstrap().Listen("127.0.0.1:0");
    channel_ = std::make_unique<Channel>(*client_runtime_, listener->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    std::thread rogue_thread([&] {
      RoguePeer rogue(*rogue_runtime);
      rogue.AcceptFrom(*listener);
      const RogueFrame request = rogue.Receive()[0];
      EXPECT_EQ(request.header.flags, 0) << "a call without context says nothing of one";
      EXPECT_EQ(request.body, std::string("\x12\x05hello")) << "and pays no byte";
      RogueFrame response = Response(request.header.call_slot, request.header.call_generation);
      response.header.flags = kFrameHasContext;
      response.body = body + request.body;
      rogue.Send(EncodeSend(kCorrect, {response}));
      dropped_ = rogue.IsDropped();
    });
    absl::Status status = Run(Hello());
    channel_.reset();
    client_runtime_.reset();
    rogue_thread.join();
    return status;
  }

  Task<absl::Status> Hello() {
    testing::EchoRequest request;
    request.set_data("hello");
    testing::EchoReply reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Echo(request, reply, {.info = &info_}));
    EXPECT_EQ(reply.data(), "hello");
    co_return absl::OkStatus();
  }

  CallInfo info_;
  bool dropped_ = false;
};

TEST_F(RogueAnswerTest, TrailingMetadataOfAnyPeerIsTaken) {
  EXPECT_EQ(Answered(Block({.metadata = {{"rows", "7"}}})), absl::OkStatus());
  EXPECT_EQ(info_.trailing_metadata.Get("rows"), "7");
}

TEST_F(RogueAnswerTest, AMalformedBlockEndsTheLink) {
  const std::string good = Block({.metadata = {{"rows", "7"}}});
  for (const std::string& body :
       {std::string("\x07"), good.substr(0, 9), Travelling(100), Block({.request_id = RequestId{}}),
        Block({.priority = Priority::kControl})}) {
    const absl::Status status = Answered(body);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(dropped_);
    EXPECT_TRUE(info_.trailing_metadata.empty());
  }
}

// The names of deduplicated calls of a correct client, as they come to a rogue server.
class NameOfCallTest : public ContextTest {
 protected:
  // Makes so many calls, as many as there are credits or more, each of which takes a frame of its
  // own. The server issues further credits once all have begun.
  std::vector<CallContext> Named(uint64_t features, uint32_t calls) {
    client_runtime_ =
        StartRuntime({.limits = {.ping_interval = std::chrono::hours(1)}});  // it sends no PONG
    std::unique_ptr<Runtime> rogue_runtime = StartRuntime();
    std::unique_ptr<MessageListener> listener =
        *CoreOf(*rogue_runtime).shard(0).bootstrap().Listen("127.0.0.1:0");
    channel_ = std::make_unique<Channel>(*client_runtime_, listener->address());
    Watched<bool> begun;
    std::vector<CallContext> names;
    std::thread rogue_thread([&] {
      RoguePeer rogue(*rogue_runtime);
      rogue.features = features;
      rogue.methods = {MethodId("verbena.testing.Counter/Add")};
      rogue.AcceptFrom(*listener);
      EXPECT_EQ(rogue_runtime->BlockOn(begun.Until(true)), absl::OkStatus());
      for (uint32_t i = 0; i < calls; ++i) {
        if (i == RoguePeer::kCredits) rogue.Send(EncodeSend(Issuing(calls), {}));
        names.push_back(ContextOfRequest(rogue.Receive()[0]));
      }
    });
    Run(Calls(calls, begun));
    channel_.reset();
    client_runtime_.reset();
    rogue_thread.join();
    return names;
  }

 private:
  static CallContext ContextOfRequest(const RogueFrame& request) {
    EXPECT_EQ(request.header.flags, kFrameHasContext);
    const char* const body = request.body.data();
    const absl::StatusOr<ContextHeader> header = ParseContextHeader(body, request.body.size());
    if (!header.ok()) return {};
    CallContext context;
    EXPECT_EQ(ParseContext(body, header->block_bytes, context), absl::OkStatus());
    return context;
  }
  // All fail, since the server goes away.
  Task<void> Calls(uint32_t calls, Watched<bool>& begun) {
    EXPECT_EQ(co_await channel_->Connect(), absl::OkStatus());
    TaskScope scope(co_await CurrentContext());
    for (uint32_t i = 0; i < calls; ++i) {
      scope.Spawn([this]() -> Task<void> {
        const testing::Counter::Stub counter(*channel_);
        testing::AddRequest request;
        request.set_filler(std::string(3000, 'f'));
        EXPECT_FALSE((co_await counter.Add(request)).ok());
      });
    }
    (void)co_await Pause();
    begun = true;
    co_await scope.Join();
  }
};

TEST_F(NameOfCallTest, TheHighestNumberIsThatOfTheMomentAtWhichTheRequestLeaves) {
  constexpr uint64_t kCalls = RoguePeer::kCredits + 2;
  const std::vector<CallContext> names = Named(kSupportedFeatures, kCalls);
  for (uint64_t number = 1; number <= kCalls; ++number) {
    const CallContext& context = names[number - 1];
    ASSERT_TRUE(context.dedupe.has_value());
    EXPECT_TRUE(context.tells_highest);
    EXPECT_EQ(context.dedupe->id.number, number);
    const bool waited = number > RoguePeer::kCredits;
    EXPECT_EQ(context.dedupe->highest, waited ? kCalls : number) << number;
  }
}

TEST_F(NameOfCallTest, AnOlderServerIsToldNoHighestNumber) {
  const std::vector<CallContext> names = Named(kSupportedFeatures & ~kFeatureHighestNumber, 1);
  ASSERT_TRUE(names[0].dedupe.has_value());
  EXPECT_FALSE(names[0].tells_highest);
}

}  // namespace context_test
}  // namespace verbena::internal
