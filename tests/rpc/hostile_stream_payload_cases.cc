// A peer that breaks the rules of payloads on streams ends its own link, and no other. A payload of
// which the reader's .proto knows nothing ends its stream alone.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/stream_payload_service.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {
namespace {

constexpr char kEcho[] = "verbena.testing.PayloadStreams/Echo";
constexpr char kSend[] = "verbena.testing.PayloadStreams/Send";
constexpr char kPlain[] = "verbena.testing.PayloadStreams/Plain";
constexpr char kSay[] = "verbena.testing.PayloadStreams/Say";
constexpr uint32_t kMost = 64u << 20;
constexpr Duration kPatience = std::chrono::seconds(40);

RogueFrame Opening(const char* method, Streams streams) {
  RogueFrame frame = Request(method, 0, 0);
  frame.header.flags = kFrameOpensStream;
  frame.header.outcome = static_cast<uint8_t>(streams);
  return frame;
}

// `payload` as a frame tells it: 0 for none, otherwise one more than its bytes. `total` is not 0 if
// further parts follow.
RogueFrame Message(std::string body, uint32_t payload, uint32_t total = 0) {
  RogueFrame frame;
  frame.header.kind = FrameKind::kStreamMessage;
  frame.header.flags = total > 0 ? kFrameMessageApart : 0;
  frame.header.argument = total;
  frame.header.deadline_us = payload;
  frame.body = std::move(body);
  return frame;
}

struct Violation {
  const char* name;
  const char* method;
  Streams streams;
  std::vector<RogueFrame> messages;
};

std::vector<Violation> ViolationsOfAClient() {
  const Streams both = Streams::kBoth;
  return {
      {"PayloadLongerThanItsMessage", kEcho, both, {Message("abc", 5)}},
      {"PayloadLongerThanItsMessageInParts", kEcho, both, {Message("abc", 12, 10)}},
      {"PayloadBeyondAllBounds", kEcho, both, {Message("abc", kMost + 2, kMost + 1)}},
      {"PayloadOfAllThatIsTold", kEcho, both, {Message("abc", ~0u)}},
      {"MessageBesideAPayloadBeyondAllBounds", kEcho, both, {Message("abc", 6, kMost + 6)}},
      {"PayloadInTheMiddle", kEcho, both, {Message("abc", 4, 10), Message("defghij", 4)}},
      {"PayloadInTheMiddleOfAMessageWithout",
       kEcho,
       both,
       {Message("abc", 0, 10), Message("defghij", 8)}},
      {"UnknownPayloadLongerThanItsMessage", kPlain, both, {Message("abc", 5)}},
      {"PayloadOfAClientThatSendsOneMessage", kSend, Streams::kServer, {Message("abc", 4)}},
  };
}

class HostileStreamPayloadTest : public StreamPayloadTest {
 protected:
  // The rogue's silence ends no link. `moved`: the server's clock is clock_.
  void StartHostile(bool moved = false) {
    RuntimeOptions server;
    server.device = RogueDevice();
    server.limits = RoguesLimits();
    server.limits.ping_interval = std::chrono::hours(100);
    if (moved) {
      server.clock = &clock_;
      server.limits.connect_timeout = std::chrono::hours(100);
      server.limits.idle_timeout = Duration::zero();
    }
    RuntimeOptions client;
    client.device = RogueDevice();
    StreamPayloadTest::Start({}, std::move(server), std::move(client));
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
  size_t ServerHolds() { return server_runtime_->BlockOn(HeldBytes(*server_runtime_)); }
  void Send(RogueFrame frame, uint32_t generation) {
    frame.header.call_generation = generation;
    rogue_->Send(EncodeSend(kCorrect, {std::move(frame)}));
  }
  RogueFrame NextResponse() {
    for (;;) {
      for (RogueFrame& frame : rogue_->Receive()) {
        if (frame.header.kind == FrameKind::kResponse || HasFailure()) return std::move(frame);
      }
    }
  }

  MovedClock clock_;
  std::unique_ptr<RoguePeer> rogue_;
};

// The first part takes the memory of all that it claims.
TEST_F(HostileStreamPayloadTest, APayloadThatNeverComesGivesItsMemoryBackInTime) {
  constexpr uint32_t kClaimed = 8u << 20;
  StartHostile(/*moved=*/true);
  uint32_t generation = 0;
  for (const bool dribbles : {false, true}) {
    Send(Opening(kEcho, Streams::kBoth), generation);
    Send(Message("abc", kClaimed + 1, kClaimed + 100), generation);
    Eventually([&] { return ServerHolds() >= kClaimed; }, "the payload has its memory");
    int parts = 0;
    Eventually(
        [&] {
          RogueFrame part = Message("x", 0, 1);
          part.header.argument = 0;
          if (dribbles && parts++ < 3) Send(std::move(part), generation);
          clock_.Advance(kMaxLandingWait);
          return ServerHolds() == 0;
        },
        "the memory is back");
    const RogueFrame response = NextResponse();
    EXPECT_EQ(response.header.call_generation, generation);
    EXPECT_EQ(response.header.status_code,
              static_cast<uint8_t>(absl::StatusCode::kDeadlineExceeded));
    ++generation;
  }
  // The link still answers.
  Send(Request(kSay, 0, 0, Numbered(7).SerializeAsString()), generation);
  EXPECT_EQ(NextResponse().header.status_code, 0);
  ExpectNothingHeld();
}

class StreamPayloadViolationTest : public HostileStreamPayloadTest,
                                   public ::testing::WithParamInterface<size_t> {};

TEST_P(StreamPayloadViolationTest, EndsItsOwnLinkAlone) {
  StartHostile();
  const Violation violation = ViolationsOfAClient()[GetParam()];
  // In one SEND: a handler that ended before the messages came would let them be dropped.
  std::vector<RogueFrame> frames = {Opening(violation.method, violation.streams)};
  frames.insert(frames.end(), violation.messages.begin(), violation.messages.end());
  rogue_->Send(EncodeSend(kCorrect, frames));
  EXPECT_TRUE(rogue_->IsDropped());
  absl::StatusOr<testing::Summary> sum = Run(CollectOf(3, 10000));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(sum->bytes(), 30000u);
  ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(All, StreamPayloadViolationTest,
                         ::testing::Range<size_t>(0, ViolationsOfAClient().size()),
                         [](const auto& info) {
                           return std::string(ViolationsOfAClient()[info.param].name);
                         });

TEST_F(HostileStreamPayloadTest, APayloadOfAMethodWithoutEndsItsStreamAlone) {
  StartHostile();
  const std::vector<std::vector<RogueFrame>> unknown = {
      {Message("", 1)},
      {Message("abc", 4)},
      {Message("abc", 4, 10), Message("defghij", 0)},
      {Message("abc", 4), Message("abc", 4)},
  };
  uint32_t generation = 0;
  for (const std::vector<RogueFrame>& messages : unknown) {
    std::vector<RogueFrame> frames = {Opening(kPlain, Streams::kBoth)};
    frames.insert(frames.end(), messages.begin(), messages.end());
    for (RogueFrame& frame : frames) frame.header.call_generation = generation;
    rogue_->Send(EncodeSend(kCorrect, frames));
    const RogueFrame response = NextResponse();
    EXPECT_EQ(response.header.call_generation, generation);
    EXPECT_EQ(response.header.status_code, static_cast<uint8_t>(absl::StatusCode::kUnimplemented));
    ++generation;
  }
  // The link still answers.
  Send(Request(kSay, 0, 0, Numbered(7).SerializeAsString()), generation);
  EXPECT_EQ(NextResponse().header.status_code, 0);
  ExpectNothingHeld();
}

// A rogue in place of a server, which answers the client's stream with one frame.
struct Answer {
  const char* name;
  bool has_payloads;  // the method
  RogueFrame frame;
};

RogueFrame LandingNeeded() {
  RogueFrame frame;
  frame.header.kind = FrameKind::kLandingNeeded;
  frame.body.resize(LandingRequest::kEncodedBytes);
  LandingRequest{.message_bytes = 64 << 10}.Encode(frame.body.data());
  return frame;
}

std::vector<Answer> AnswersOfAServer() {
  return {
      {"PayloadLongerThanItsMessage", true, Message("abc", 5)},
      {"PayloadBeyondAllBounds", true, Message("abc", kMost + 2, kMost + 1)},
      {"UnknownPayloadLongerThanItsMessage", false, Message("abc", 5)},
      {"ALandingForAStream", true, LandingNeeded()},
  };
}

class StreamPayloadAnswerTest : public StreamPayloadTest,
                                public ::testing::WithParamInterface<size_t> {};

TEST_P(StreamPayloadAnswerTest, EndsTheLink) {
  const Answer answer = AnswersOfAServer()[GetParam()];
  auto server = Runtime::Start({.device = RogueDevice()});
  ASSERT_TRUE(server.ok()) << server.status();
  auto listener = *CoreOf(**server).shard(0).bootstrap().Listen("127.0.0.1:0");
  RuntimeOptions options;
  options.device = RogueDevice();
  options.limits = RoguesLimits();
  // The rogue's silence ends no link.
  options.limits.ping_interval = std::chrono::hours(1);
  StartClient(listener->address(), std::move(options));
  RoguePeer rogue(**server, RogueDevice());
  rogue.methods = {MethodId(kEcho), MethodId(kPlain), MethodId(kSay)};
  std::thread script([&] {
    rogue.AcceptFrom(*listener);
    std::vector<RogueFrame> opening = rogue.Receive();
    while (opening[0].header.kind != FrameKind::kRequest) opening = rogue.Receive();
    rogue.Send(EncodeSend(kCorrect, {answer.frame}));
    EXPECT_TRUE(rogue.IsDropped());
  });
  auto with = [&]() -> Task<absl::Status> {
    auto stream = stub_->Echo({.deadline = kPatience});
    EXPECT_FALSE((co_await stream.Read()).has_value());
    co_return co_await stream.Finish();
  };
  auto without = [&]() -> Task<absl::Status> {
    auto stream = stub_->Plain({.deadline = kPatience});
    EXPECT_FALSE((co_await stream.Read()).has_value());
    co_return co_await stream.Finish();
  };
  const absl::Status status = answer.has_payloads ? Run(with()) : Run(without());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  script.join();
}

INSTANTIATE_TEST_SUITE_P(All, StreamPayloadAnswerTest,
                         ::testing::Range<size_t>(0, AnswersOfAServer().size()),
                         [](const auto& info) {
                           return std::string(AnswersOfAServer()[info.param].name);
                         });

}  // namespace
}  // namespace verbena::internal
