// A client that breaks the rules of streams ends its own link, and no other. What only comes late,
// or was refused, ends no link.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/rogue_stream.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/stream/windows.h"

namespace verbena::internal {
namespace {

struct Violation {
  const char* name;
  std::vector<RogueFrame> frames;  // each in a SEND of its own
};

std::vector<Violation> ViolationsOfContexts() {
  const uint8_t more = kFrameMessageApart;
  const std::string good = ContextBlock();
  std::string unknown = good;
  unknown[4] = 16;
  const CallContext name{.dedupe = DedupeName{.id = {.client = {1}, .number = 1}}};
  std::string named(name.encoded_bytes(), '\0');
  name.Encode(named.data());
  std::string upper = good;
  upper[8 + 4] = 'K';
  const RogueFrame echo = Opening(kEcho, Streams::kBoth);
  RogueFrame apart = Opening(kCountMethod, Streams::kServer, 0, "x");
  apart.header.flags |= kFrameMessageApart;
  const std::string beside = ContextBlockOf(2000);
  return {
      {"ContextThatIsMissing", {Carrying("", echo)}},
      {"ContextCutShort", {Carrying(good.substr(0, good.size() - 1), echo)}},
      {"ContextWithAnUnknownFlag", {Carrying(unknown, echo)}},
      {"ContextWithTheNameOfACall", {Carrying(named, echo)}},
      {"ContextWithAKeyInCapitals", {Carrying(upper, echo)}},
      {"ContextTooLargeForAFrame", {Carrying(ContextBlock(kMaxContextInFrame), echo)}},
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
  };
}

std::vector<Violation> ViolationsOfFrames() {
  const uint8_t more = kFrameMessageApart;
  RogueFrame bulk = Opening(kEcho, Streams::kBoth);
  bulk.header.flags |= kFrameHasBulk;
  RogueFrame apart = Opening(kCountMethod, Streams::kServer, 0, "x");
  apart.header.flags |= kFrameMessageApart;
  RogueFrame client_apart = Opening(kEcho, Streams::kBoth);
  client_apart.header.flags |= kFrameMessageApart;
  RogueFrame unary_apart = Request(kSay, 0, 0);
  unary_apart.header.flags = kFrameMessageApart;
  return {
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

std::vector<Violation> ViolationsOfAClient() {
  std::vector<Violation> all = ViolationsOfContexts();
  for (Violation& each : ViolationsOfFrames()) all.push_back(std::move(each));
  return all;
}

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
  RogueFrame opening = Carrying(ContextBlock(), Opening(kCountMethod, Streams::kServer));
  opening.header.flags |= kFrameMessageApart;
  Send({opening, Message(request.SerializeAsString())});
  EXPECT_EQ(ResponseOf(0).header.status_code, static_cast<uint8_t>(absl::StatusCode::kAborted));
  ExpectServed();
}

TEST_F(HostileStreamTest, AContextMayComeBesideTheMessagesInAnyParts) {
  Start();
  const std::string block = ContextBlockOf(2000);
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
  RogueFrame rest = Beside(ContextBlockOf(2000));
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

TEST_F(HostileStreamTest, MessagesOfAStreamThatIsNoneLeaveTheWindowOfTheLinkOpen) {
  Start();
  constexpr size_t kAtOnce = 16;  // fewer than there are credits
  for (size_t bytes = 0; bytes <= kLinkWindowBytes; bytes += kAtOnce * kLargeBody) {
    std::vector<RogueFrame> frames = Times(kAtOnce, Message(ItemBytes(kLargeBody)));
    frames.push_back(Request(kSay, 9, next_generation_++, ItemBytes(10)));
    const SendHeader header = Issuing(RoguePeer::kCredits + rogue_->sends_received());
    for (const RogueFrame& frame : frames) rogue_->Send(EncodeSend(header, {frame}));
    ASSERT_EQ(ResponseOf(9).header.status_code, 0);
  }
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

}  // namespace
}  // namespace verbena::internal
