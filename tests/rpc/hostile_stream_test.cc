// A peer that breaks the rules of streams ends its own link, and no other. What only comes late, or
// was refused, ends no link.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/moved_clock.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/internal/allocate.h"
#include "verbena/rpc/internal/context_format.h"
#include "verbena/rpc/internal/stream_link.h"

namespace verbena::internal {
namespace {

constexpr char kEcho[] = "verbena.testing.Streaming/Echo";
constexpr char kIgnore[] = "verbena.testing.Streaming/Ignore";
constexpr char kCountMethod[] = "verbena.testing.Streaming/Count";
constexpr char kSay[] = "verbena.testing.Streaming/Say";
constexpr char kHold[] = "verbena.testing.Streaming/Hold";

// A server takes SENDs as large, so that few of them fill a window.
constexpr uint32_t kEagerBytes = 65536;
constexpr size_t kLargeBody = 60000;

RogueFrame Opening(const char* method, Streams streams, uint32_t slot = 0, std::string body = "") {
  RogueFrame frame = Request(method, slot, 0, std::move(body));
  frame.header.flags = kFrameOpensStream;
  frame.header.outcome = static_cast<uint8_t>(streams);
  return frame;
}

RogueFrame Frame(FrameKind kind, std::string body = "", uint8_t flags = 0, uint32_t argument = 0,
                 uint32_t slot = 0, uint32_t generation = 0) {
  RogueFrame frame;
  frame.header.kind = kind;
  frame.header.flags = flags;
  frame.header.argument = argument;
  frame.header.call_slot = static_cast<uint16_t>(slot);
  frame.header.call_generation = generation;
  frame.body = std::move(body);
  return frame;
}

RogueFrame Message(std::string body, uint8_t flags = 0, uint32_t argument = 0) {
  return Frame(FrameKind::kStreamMessage, std::move(body), flags, argument);
}
// Counts in the window of its stream alone.
RogueFrame OwnMessage(std::string body, uint8_t window = kCountsInStreamAlone) {
  RogueFrame frame = Message(std::move(body));
  frame.header.outcome = window;
  return frame;
}
// Counts in no window.
RogueFrame Beside(std::string body, uint8_t flags = 0) {
  RogueFrame frame = Message(std::move(body), flags);
  frame.header.outcome = kBesideMessages;
  return frame;
}
RogueFrame Failure(std::string body, uint8_t flags = 0) {
  RogueFrame frame = Response(0, 0);
  frame.header.status_code = static_cast<uint8_t>(absl::StatusCode::kAborted);
  frame.header.outcome = static_cast<uint8_t>(Outcome::kExecuted);
  frame.header.flags = flags;
  frame.body = std::move(body);
  return frame;
}
RogueFrame Window(uint32_t limit, uint8_t flags = 0, std::string body = "") {
  return Frame(FrameKind::kStreamWindow, std::move(body), flags, limit);
}
RogueFrame End(std::string body = "", uint8_t flags = 0) {
  return Frame(FrameKind::kStreamEnd, std::move(body), flags);
}

// An item without a number, of `bytes` bytes in all.
std::string ItemBytes(size_t bytes) {
  testing::StreamItem item;
  item.set_data(std::string(bytes, 'd'));
  item.mutable_data()->resize(bytes - (item.ByteSizeLong() - bytes));
  return item.SerializeAsString();
}

// A stream whose handler writes until the window is full.
std::string ManyItems() {
  testing::CountRequest request;
  request.set_count(1000000);
  request.set_bytes(1000);
  return request.SerializeAsString();
}

// An opening that begins with a context block, or with what a rogue has for one.
RogueFrame Carrying(const std::string& block, RogueFrame opening) {
  opening.header.flags |= kFrameHasContext;
  opening.body.insert(0, block);
  return opening;
}

std::string Block(size_t value_bytes = 5) {
  const CallContext context{.metadata = {{"key", std::string(value_bytes, 'v')}}};
  std::string block(context.encoded_bytes(), '\0');
  context.Encode(block.data());
  return block;
}

// A block of `bytes` in all.
std::string BlockOf(size_t bytes) { return Block(bytes - (Block(1).size() - 1)); }

std::string Travelling(size_t bytes) {
  std::string header(kContextHeaderBytes, '\0');
  EncodeTravellingContext(bytes, header.data());
  return header;
}

struct Violation {
  const char* name;
  std::vector<RogueFrame> frames;  // each in a SEND of its own
};

std::vector<RogueFrame> OnEcho(std::vector<RogueFrame> frames) {
  frames.insert(frames.begin(), Opening(kEcho, Streams::kBoth));
  return frames;
}

std::vector<RogueFrame> OnIgnore(std::vector<RogueFrame> frames) {
  frames.insert(frames.begin(), Opening(kIgnore, Streams::kBoth));
  return frames;
}

std::vector<RogueFrame> Times(size_t count, const RogueFrame& frame) { return {count, frame}; }

std::vector<Violation> ViolationsOfAClient() {
  const uint8_t more = kFrameMessageApart;
  RogueFrame bulk = Opening(kEcho, Streams::kBoth);
  bulk.header.flags |= kFrameHasBulk;
  RogueFrame apart = Opening(kCountMethod, Streams::kServer, 0, "x");
  apart.header.flags |= kFrameMessageApart;
  RogueFrame client_apart = Opening(kEcho, Streams::kBoth);
  client_apart.header.flags |= kFrameMessageApart;
  RogueFrame unary_apart = Request(kSay, 0, 0);
  unary_apart.header.flags = kFrameMessageApart;
  const std::string good = Block();
  std::string unknown = good;
  unknown[4] = 8;
  std::string upper = good;
  upper[8 + 4] = 'K';
  const RogueFrame echo = Opening(kEcho, Streams::kBoth);
  const std::string beside = BlockOf(2000);
  return {
      {"ContextThatIsMissing", {Carrying("", echo)}},
      {"ContextCutShort", {Carrying(good.substr(0, good.size() - 1), echo)}},
      {"ContextWithAnUnknownFlag", {Carrying(unknown, echo)}},
      {"ContextWithAKeyInCapitals", {Carrying(upper, echo)}},
      {"ContextTooLargeForAFrame", {Carrying(Block(kMaxContextInFrame), echo)}},
      {"ContextApartOfAUnaryCall", {Carrying(Travelling(2000), Request(kSay, 0, 0))}},
      {"ContextBesideNothing", {echo, Beside("abc")}},
      {"ContextBesideLongerThanTold", {Carrying(Travelling(2000), echo), Beside(beside + "xx")}},
      {"ContextBesideBehindItsEnd",
       {Carrying(Travelling(2000), echo), Beside(beside), Beside("x")}},
      {"ContextBesideInAnEmptyPart", {Carrying(Travelling(2000), echo), Beside("")}},
      {"ContextBesideWithAFlag", {Carrying(Travelling(2000), echo), Beside("abc", more)}},
      {"ContextBesideThatIsMalformed",
       {Carrying(Travelling(2000), echo), Beside(std::string(2000, 'x'))}},
      {"ContextBesideThatTellsOfAnother",
       {Carrying(Travelling(2000), echo), Beside(Travelling(2000) + std::string(1992, 'x'))}},
      {"ContextBesideAMessageTwice", {Carrying(good, apart)}},
      {"StreamThatNoSideSends", {Opening(kEcho, Streams::kNone)}},
      {"StreamThatNoSideSendsOfAUnaryMethod", {Opening(kSay, Streams::kNone)}},
      {"RequestApartOfAClientThatStreams", {client_apart}},
      {"MessagesBeyondTheWindow", OnIgnore(Times(5, Message(ItemBytes(kLargeBody))))},
      {"MessageBeyondItsStreamsOwnWindow",
       OnIgnore({OwnMessage(ItemBytes(kOwnWindowBytes - kStreamFrameCost)), OwnMessage("")})},
      {"MessageInAnUnknownWindow", OnEcho({OwnMessage(ItemBytes(10), 3)})},
      {"MessageAfterTheEnd", OnIgnore({End(), Message(ItemBytes(10))})},
      {"SecondEnd", OnIgnore({End(), End()})},
      {"EndWithABody", OnEcho({End("x")})},
      {"EndWithAFlag", OnEcho({End("", more)})},
      {"EndWithinAMessage", OnEcho({Message("abc", more, 10), End()})},
      {"MessageOfAClientThatSendsOne",
       {Opening(kCountMethod, Streams::kServer, 0, ManyItems()), Message(ItemBytes(10))}},
      {"MessageOfAUnaryCall", {Request(kHold, 0, 0), Message(ItemBytes(10))}},
      {"WindowOfAUnaryCall", {Request(kHold, 0, 0), Window(1 << 20)}},
      {"PartsOfFewerBytesThanTold", OnEcho({Message("abc", more, 10), Message("abc")})},
      {"PartsOfMoreBytesThanTold", OnEcho({Message("abc", more, 10), Message("abcdefgh")})},
      {"PartsThatGoOnTooLong", OnEcho({Message("abc", more, 6), Message("abc", more)})},
      {"EmptyPart", OnEcho({Message("abc", more, 10), Message("", more)})},
      {"EmptyFirstPart", OnEcho({Message("", more, 10)})},
      {"FirstPartWithoutASize", OnEcho({Message("abc", more)})},
      {"FirstPartOfTheWholeSize", OnEcho({Message("abc", more, 3)})},
      {"MessageBeyondAllBounds", OnEcho({Message("abc", more, (64u << 20) + 1)})},
      {"SizeOfAWholeMessage", OnEcho({Message("abc", 0, 3)})},
      {"SizeInTheMiddle", OnEcho({Message("abc", more, 10), Message("defghij", 0, 10)})},
      {"UnknownFlagOfAMessage", OnEcho({Message("abc", kFrameHasBulk)})},
      {"WindowThatGoesBack", OnEcho({Window(kStreamWindowBytes - 1)})},
      {"WindowThatDoesNotMove", OnEcho({Window(kStreamWindowBytes)})},
      {"WindowWithoutABound", OnEcho({Window(kStreamWindowBytes + (1u << 30))})},
      {"WindowWithABody", OnEcho({Window(kStreamWindowBytes + 1, 0, "x")})},
      {"WindowWithAnUnknownFlag", OnEcho({Window(kStreamWindowBytes + 1, more)})},
      {"WindowOfTheLinkThatGoesBack", OnEcho({Window(kLinkWindowBytes - 1, kFrameOfLink)})},
      {"WindowOfTheLinkThatDoesNotMove", OnEcho({Window(kLinkWindowBytes, kFrameOfLink)})},
      {"WindowOfTheLinkWithABody", OnEcho({Window(kLinkWindowBytes + 1, kFrameOfLink, "x")})},
      {"OpeningWithBulk", {bulk}},
      {"OpeningWithItsMessageTwice", {apart}},
      {"UnaryRequestWithItsMessageApart", {unary_apart}},
  };
}

class HostileStreamTest : public StreamTest {
 protected:
  // `patient`: silence ends no link, and the server's clock is clock_.
  void Start(bool patient = false, Duration ping_interval = LinkLimits().ping_interval) {
    RuntimeOptions server;
    server.device = RogueDevice();
    server.limits = RoguesLimits();
    server.limits.ping_interval = ping_interval;
    if (patient) {
      server.clock = &clock_;
      server.limits.ping_interval = server.limits.connect_timeout = std::chrono::hours(100);
      server.limits.idle_timeout = Duration::zero();
    }
    server.limits.eager_bytes = kEagerBytes;
    server.limits.initial_credits = 32;
    server.limits.srq_depth = 1024;
    server.limits.max_links = 16;
    RuntimeOptions client;
    client.device = RogueDevice();
    StreamTest::Start({}, std::move(server), std::move(client));
    ASSERT_EQ(Run(SayOnce()), absl::OkStatus());
    rogue_ = std::make_unique<RoguePeer>(*client_runtime_, RogueDevice());
    rogue_->ConnectTo(server_->address());
  }
  void TearDown() override {
    rogue_.reset();
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }
  // Lets the server's clock pass over its limits until a call has failed.
  void AwaitFailure() {
    Eventually(
        [this] {
          clock_.moved_by = clock_.moved_by.load() + kMaxLandingWait;
          return server_->stats().failures == 1;
        },
        "the call is over");
  }
  void Send(const std::vector<RogueFrame>& frames) {
    for (const RogueFrame& frame : frames) rogue_->Send(EncodeSend(kCorrect, {frame}));
  }
  // Awaits the response of a call in `slot`, whatever comes before it.
  RogueFrame ResponseOf(uint32_t slot) {
    for (int i = 0; i < 1000; ++i) {
      for (const RogueFrame& frame : rogue_->Receive()) {
        if (frame.header.kind == FrameKind::kResponse && frame.header.call_slot == slot) {
          return frame;
        }
      }
    }
    ADD_FAILURE() << "no response";
    return {};
  }
  // The link of the rogue still answers.
  void ExpectServed() {
    Send({Request(kSay, 9, next_generation_++, ItemBytes(10))});
    EXPECT_EQ(ResponseOf(9).header.status_code, 0);
  }

  MovedClock clock_;
  std::unique_ptr<RoguePeer> rogue_;
  uint32_t next_generation_ = 0;
};

class StreamViolationTest : public HostileStreamTest,
                            public ::testing::WithParamInterface<size_t> {};

TEST_P(StreamViolationTest, EndsItsOwnLinkAlone) {
  Start();
  Send(ViolationsOfAClient()[GetParam()].frames);
  EXPECT_TRUE(rogue_->IsDropped());
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the rogue's handlers end");
}

INSTANTIATE_TEST_SUITE_P(All, StreamViolationTest,
                         ::testing::Range<size_t>(0, ViolationsOfAClient().size()),
                         [](const auto& info) {
                           return std::string(ViolationsOfAClient()[info.param].name);
                         });

TEST_F(HostileStreamTest, MessagesWithinTheWindowEndNoLink) {
  Start();
  Send(OnIgnore(Times(4, Message(ItemBytes(kLargeBody)))));
  ExpectServed();
}

TEST_F(HostileStreamTest, AContextMayComeWithARequestThatIsApart) {
  Start();
  testing::CountRequest request;
  request.set_code(static_cast<int>(absl::StatusCode::kAborted));
  RogueFrame opening = Carrying(Block(), Opening(kCountMethod, Streams::kServer));
  opening.header.flags |= kFrameMessageApart;
  Send({opening, Message(request.SerializeAsString())});
  EXPECT_EQ(ResponseOf(0).header.status_code, static_cast<uint8_t>(absl::StatusCode::kAborted));
  ExpectServed();
}

TEST_F(HostileStreamTest, AContextMayComeBesideTheMessagesInAnyParts) {
  Start();
  const std::string block = BlockOf(2000);
  Send({Carrying(Travelling(2000), Opening(kEcho, Streams::kBoth)), Message(ItemBytes(10)),
        Beside(block.substr(0, 1)), Beside(block.substr(1, 1500)), End(),
        Beside(block.substr(1501))});
  EXPECT_EQ(ResponseOf(0).header.status_code, 0);
  ExpectServed();
}

TEST_F(HostileStreamTest, AContextOfARefusedStreamIsDroppedAndTheLinkStays) {
  Start();
  // Beyond what a server takes, and of a method that streams otherwise.
  Send({Carrying(Travelling(kMaxContextBytes), Opening(kEcho, Streams::kBoth)),
        Beside(std::string(2000, 'x'))});
  EXPECT_EQ(ResponseOf(0).header.status_code,
            static_cast<uint8_t>(absl::StatusCode::kResourceExhausted));
  RogueFrame opening = Carrying(Travelling(2000), Opening(kEcho, Streams::kServer, 0));
  RogueFrame rest = Beside(BlockOf(2000));
  opening.header.call_generation = rest.header.call_generation = 1;
  Send({opening, rest});
  EXPECT_EQ(ResponseOf(0).header.status_code,
            static_cast<uint8_t>(absl::StatusCode::kUnimplemented));
  ExpectServed();
}

TEST_F(HostileStreamTest, MessagesThatBeginInTheirStreamsOwnWindowEndNoLink) {
  Start();
  Send(OnIgnore({OwnMessage(ItemBytes(kOwnWindowBytes - kStreamFrameCost - 1)),
                 OwnMessage(ItemBytes(kLargeBody)), Message(ItemBytes(10))}));
  ExpectServed();
}

// Four claims of 64 MiB are all of an executor's memory for streams.
TEST_F(HostileStreamTest, ClaimsOfLargeMessagesTakeNoMemory) {
  Start();
  for (uint32_t slot = 0; slot < 4; ++slot) {
    Send({Opening(kEcho, Streams::kBoth, slot),
          Frame(FrameKind::kStreamMessage, "x", kFrameMessageApart, 64u << 20, slot)});
  }
  ExpectServed();
  const absl::StatusOr<testing::Summary> sum = Run(SumOf(2, 1 << 20));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(sum->bytes(), 2u << 20);
}

TEST_F(HostileStreamTest, FramesOfAStreamThatIsNoneAreDropped) {
  Start();
  Send({Message(ItemBytes(10)), Message("abc", kFrameMessageApart, 10), End(), Window(1 << 20)});
  ExpectServed();
}

TEST_F(HostileStreamTest, AMethodThatStreamsOtherwiseIsRefusedAndTheLinkStays) {
  Start();
  uint32_t slot = 0;
  for (const RogueFrame& frame :
       {Request(kEcho, 0, 0, ItemBytes(10)), Opening(kSay, Streams::kBoth),
        Opening(kEcho, Streams::kServer), Opening(kCountMethod, Streams::kBoth),
        Opening(kEcho, static_cast<Streams>(77))}) {
    RogueFrame asked = frame;
    asked.header.call_slot = static_cast<uint16_t>(slot);
    Send({asked, Frame(FrameKind::kStreamMessage, ItemBytes(10), 0, 0, slot),
          Frame(FrameKind::kStreamEnd, "", 0, 0, slot)});
    const RogueFrame response = ResponseOf(slot);
    EXPECT_EQ(response.header.status_code, static_cast<uint8_t>(absl::StatusCode::kUnimplemented));
    EXPECT_EQ(response.header.outcome, static_cast<uint8_t>(Outcome::kNotExecuted));
    ++slot;
  }
  ExpectServed();
  EXPECT_EQ(service_.running, 0);
}

// Its CANCEL may have found no room at the client.
TEST_F(HostileStreamTest, ASlotThatIsUsedAgainCancelsItsFormerCall) {
  Start();
  RogueFrame again = Opening(kIgnore, Streams::kBoth);
  again.header.call_generation = 1;
  Send({Opening(kIgnore, Streams::kBoth), again});
  const RogueFrame response = ResponseOf(0);
  EXPECT_EQ(response.header.call_generation, 0u);
  EXPECT_EQ(response.header.status_code, static_cast<uint8_t>(absl::StatusCode::kCancelled));
  ExpectServed();
}

TEST_F(HostileStreamTest, AMessageThatDoesNotParseFailsTheHandlersRead) {
  Start();
  Send(OnEcho({Message("\xff\xff\xff")}));
  EXPECT_EQ(ResponseOf(0).header.status_code,
            static_cast<uint8_t>(absl::StatusCode::kInvalidArgument));
  ExpectServed();
}

TEST_F(HostileStreamTest, AContextThatNeverComesEndsItsCallInTime) {
  Start(/*patient=*/true);
  Send({Carrying(Travelling(2000), Opening(kEcho, Streams::kBoth)), Beside("abc")});
  AwaitFailure();
  const RogueFrame response = ResponseOf(0);
  EXPECT_EQ(response.header.status_code, static_cast<uint8_t>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(response.header.outcome, static_cast<uint8_t>(Outcome::kNotExecuted));
  ExpectServed();
}

// The rogue has issued 8 credits, and the failure needs more SENDs.
TEST_F(HostileStreamTest, AClientThatDoesNotTakeAFailureLosesItsLink) {
  Start(/*patient=*/true);
  service_.detail_bytes = 100'000;
  testing::CountRequest request;
  request.set_code(static_cast<int>(absl::StatusCode::kAborted));
  Send({Opening(kCountMethod, Streams::kServer, 0, request.SerializeAsString())});
  Eventually(
      [this] {
        clock_.moved_by = clock_.moved_by.load() + ServerOptions{}.response_grace;
        return server_runtime_->endpoint_stats(0).links_lost == 1;
      },
      "its link is closed");
  EXPECT_EQ(server_->stats().failures, 1u);
  EXPECT_TRUE(rogue_->IsDropped());
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

// One frame for each half of the grace would take the call a quarter of an hour.
TEST_F(HostileStreamTest, AClientDoesNotDrawAFailureOutBeyondTheGrace) {
  Start(/*patient=*/true);
  service_.detail_bytes = 250'000;
  testing::CountRequest request;
  request.set_code(static_cast<int>(absl::StatusCode::kAborted));
  Send({Opening(kCountMethod, Streams::kServer, 0, request.SerializeAsString())});
  while (rogue_->sends_received() < RoguePeer::kCredits) (void)rogue_->Receive();
  const auto pass = [this] {
    clock_.moved_by = clock_.moved_by.load() + ServerOptions{}.response_grace * 2 / 3;
  };
  pass();
  rogue_->Send(EncodeSend(Granting(RoguePeer::kCredits + 1), {}));
  EXPECT_EQ(rogue_->Receive()[0].header.outcome, kBesideMessages) << "the next part";
  pass();
  Eventually([this] { return server_runtime_->endpoint_stats(0).links_lost == 1; },
             "its link is closed");
  EXPECT_TRUE(rogue_->IsDropped());
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

TEST_F(HostileStreamTest, ARequestThatNeverComesEndsItsCallInTime) {
  Start(/*patient=*/true);
  RogueFrame apart = Opening(kCountMethod, Streams::kServer);
  apart.header.flags |= kFrameMessageApart;
  Send({apart});
  AwaitFailure();
  const RogueFrame response = ResponseOf(0);
  EXPECT_EQ(response.header.status_code, static_cast<uint8_t>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(response.header.outcome, static_cast<uint8_t>(Outcome::kNotExecuted));
  ExpectServed();
}

// The reply is larger than the stream's window, and waits until the client reads.
TEST_F(HostileStreamTest, AReplyThatItsClientDoesNotTakeEndsTheCallInTime) {
  Start(/*patient=*/true);
  service_.reply_filler = 1 << 20;
  std::optional<ClientWriter<testing::StreamItem, testing::Summary>> writer;
  auto begin = [&]() -> Task<absl::Status> {
    writer.emplace(stub_->Sum());
    VERBENA_CO_RETURN_IF_ERROR(co_await writer->Write(ItemOf(1)));
    co_return co_await writer->WritesDone();
  };
  EXPECT_EQ(Run(begin()), absl::OkStatus());
  Eventually([this] { return service_.read_ == 1 && service_.running == 0; }, "it has replied");
  AwaitFailure();
  auto finish = [&]() -> Task<absl::Status> {
    absl::StatusOr<testing::Summary> reply = co_await writer->Finish();
    writer.reset();
    co_return reply.status();
  };
  const absl::Status status = Run(finish());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

// The rest of the message is dropped with its Write, whatever the handler makes of that.
TEST_F(HostileStreamTest, AStreamWhoseLastMessageItsDeadlineCutDoesNotEndWell) {
  Start(/*patient=*/true);
  service_.shields = service_.forgives = true;
  testing::CountRequest request;
  request.set_count(1);
  request.set_bytes(1 << 20);
  RogueFrame opening = Opening(kCountMethod, Streams::kServer, 0, request.SerializeAsString());
  opening.header.set_deadline(std::chrono::microseconds(std::chrono::seconds(10)).count());
  Send({opening});
  EXPECT_EQ(rogue_->Receive()[0].header.kind, FrameKind::kStreamMessage);
  clock_.moved_by = std::chrono::seconds(10);
  Eventually([this] { return server_->stats().calls > 0 && service_.running == 0; },
             "the handler ends");
  // Room for the response.
  rogue_->Send(
      EncodeSend(Granting(RoguePeer::kCredits + 32), {Request(kSay, 9, 0, ItemBytes(10))}));
  EXPECT_EQ(ResponseOf(0).header.status_code,
            static_cast<uint8_t>(absl::StatusCode::kDeadlineExceeded));
}

// The client answers PINGs, for all that the server knows, and issues no credits.
TEST_F(HostileStreamTest, AMessageOfAStreamThatItsClientDoesNotTakeEndsTheLink) {
  Start(/*patient=*/true);
  Send({Opening(kCountMethod, Streams::kServer, 0, ManyItems())});
  Eventually([this] { return service_.written_ > 0; }, "the handler writes");
  Eventually(
      [this] {
        clock_.moved_by = clock_.moved_by.load() + ServerOptions().response_grace;
        return server_runtime_->endpoint_stats(0).links == 1;
      },
      "the link closes");
  Eventually([this] { return service_.running == 0; }, "the handler ends");
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

// Frozen, as by a debugger: its process is there, and its bootstrap connection.
TEST_F(HostileStreamTest, AClientThatFallsSilentWhileAHandlerReadsLosesItsLink) {
  Start(/*patient=*/false, /*ping_interval=*/std::chrono::milliseconds(20));
  Send(OnEcho({}));
  EXPECT_TRUE(rogue_->IsDropped());
  Eventually([this] { return service_.running == 0; }, "the handler ends");
}

TEST_F(HostileStreamTest, AClientThatFallsSilentBeforeItsContextLosesItsLink) {
  Start(/*patient=*/false, /*ping_interval=*/std::chrono::milliseconds(20));
  Send({Carrying(Travelling(2000), Opening(kEcho, Streams::kBoth))});
  EXPECT_TRUE(rogue_->IsDropped());
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

class CountingStream final : public UntoldStream {
 public:
  int heard = 0;

 private:
  void OnStreamLinkTight() override { ++heard; }
};

// A peer that fills the window again and again makes nobody walk over all streams each time.
TEST(StreamLinkTest, AStreamHearsOnceThatItsLinksWindowIsUsedUp) {
  StreamLink link;
  std::vector<CountingStream> streams(1000);
  for (CountingStream& stream : streams) link.AddUntold(stream);
  FrameHeader frame;
  frame.kind = FrameKind::kStreamMessage;
  frame.outcome = kCountsInLink;
  frame.body_bytes = 60000;
  while (!link.is_tight()) ASSERT_EQ(link.OnReceived(frame), absl::OkStatus());
  link.TellUntold();
  for (const CountingStream& stream : streams) {
    EXPECT_EQ(stream.heard, 1);
    EXPECT_FALSE(stream.linked());
  }
}

// A rogue in place of a server. The test's client reads nothing.
struct Answer {
  const char* name;
  std::vector<RogueFrame> frames;
  bool closes = true;
};

std::vector<Answer> AnswersOfAServer() {
  const uint8_t more = kFrameMessageApart;
  std::vector<RogueFrame> beyond = Times(65, Message(ItemBytes(4040)));
  return {
      {"MessagesBeyondTheWindow", beyond},
      {"End", {End()}},
      {"ResponseWithinAMessage", {Message("abc", more, 10), Response(0, 0)}},
      {"MessageOfAnUnusedSlot",
       {Frame(FrameKind::kStreamMessage, ItemBytes(10), 0, 0, /*slot=*/5)}},
      {"MessageOfAGenerationToCome",
       {Frame(FrameKind::kStreamMessage, ItemBytes(10), 0, 0, 0, /*generation=*/1)}},
      {"WindowThatGoesBack", {Window(1)}},
      {"MessageBeyondAllBounds", {Message("abc", more, (64u << 20) + 1)}},
      {"StatusBeyondItsBound", Times(65, Beside(std::string(4050, 's')))},
      {"StatusInAnEmptyPart", {Beside("")}},
      {"StatusWithAFlag", {Beside("abc", more)}},
      {"StatusOfAStreamThatEndsWell", {Beside("abc"), Response(0, 0)}},
      {"StatusInTwoPlaces", {Beside("abc"), Failure("abc")}},
      {"StatusInTwoPlacesAtOnce", {Beside("abc"), Failure("abc", more)}},
      {"StatusThatNeverCame", {Failure("", more)}},
      {"StatusBehindTheResponse", {Response(0, 0), Beside("abc")}, /*closes=*/false},
      {"MessageBehindTheResponse", {Response(0, 0), Message(ItemBytes(10))}, /*closes=*/false},
      {"WindowBehindTheResponse", {Response(0, 0), Window(1 << 20)}, /*closes=*/false},
  };
}

class StreamAnswerTest : public StreamTest, public ::testing::WithParamInterface<size_t> {};

TEST_P(StreamAnswerTest, EndsTheLinkIfItIsAViolation) {
  const Answer answer = AnswersOfAServer()[GetParam()];
  auto server = Runtime::Start({.device = RogueDevice()});
  ASSERT_TRUE(server.ok()) << server.status();
  auto listener = *(*server)->shard(0).bootstrap().Listen("127.0.0.1:0");
  RuntimeOptions options;
  options.device = RogueDevice();
  options.limits = RoguesLimits();
  options.limits.initial_credits = 128;
  StartClient(listener->address(), std::move(options));
  RoguePeer rogue(**server, RogueDevice());
  rogue.methods = {MethodId(kEcho), MethodId(kSay)};
  std::thread script([&] {
    rogue.AcceptFrom(*listener);
    std::vector<RogueFrame> opening = rogue.Receive();
    while (opening[0].header.kind != FrameKind::kRequest) opening = rogue.Receive();
    EXPECT_EQ(opening[0].header.flags, kFrameOpensStream);
    for (const RogueFrame& frame : answer.frames) rogue.Send(EncodeSend(kCorrect, {frame}));
    if (answer.closes) {
      EXPECT_TRUE(rogue.IsDropped());
    } else {
      // The link still works.
      std::vector<RogueFrame> call = rogue.Receive();
      while (call[0].header.kind != FrameKind::kRequest) call = rogue.Receive();
      rogue.Send(EncodeSend(kCorrect,
                            {Response(call[0].header.call_slot, call[0].header.call_generation)}));
    }
  });
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<testing::StreamItem, testing::StreamItem> stream = stub_->Echo();
    const TimePoint limit = Clock::Real().Now() + RoguePeer::kPatience;
    // Finish() would drop what nobody reads.
    while (answer.closes && (co_await stream.WritesDone()).ok() && Clock::Real().Now() < limit) {
      (void)co_await Sleep(std::chrono::milliseconds(1));
    }
    co_return co_await stream.Finish();
  };
  const absl::Status status = Run(run());
  EXPECT_EQ(status.code(), answer.closes ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk)
      << status;
  if (!answer.closes) EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
  script.join();
}

INSTANTIATE_TEST_SUITE_P(All, StreamAnswerTest,
                         ::testing::Range<size_t>(0, AnswersOfAServer().size()),
                         [](const auto& info) {
                           return std::string(AnswersOfAServer()[info.param].name);
                         });

}  // namespace
}  // namespace verbena::internal
