// Frames are parsed as proto/WIRE.md specifies them. Each malformed SEND is a fault, and no input
// makes the parser read outside its bytes.

#include "verbena/transport/link/wire_format.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace wire_format_test {

struct Sample {
  FrameHeader header;
  std::string body;
};

std::string Encode(SendHeader send, const std::vector<Sample>& frames) {
  send.frame_count = static_cast<uint16_t>(frames.size());
  std::string bytes(reinterpret_cast<const char*>(&send), sizeof(send));
  for (Sample frame : frames) {
    frame.header.body_bytes = static_cast<uint32_t>(frame.body.size());
    bytes.append(reinterpret_cast<const char*>(&frame.header), sizeof(frame.header));
    bytes += frame.body;
    bytes.resize((bytes.size() + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment);
  }
  return bytes;
}

WireFault FaultOf(const std::string& bytes) {
  FrameParser parser(bytes.data(), bytes.size());
  while (parser.Next()) {
  }
  return parser.fault();
}

std::vector<Sample> TwoFrames() {
  Sample request;
  request.header.call_slot = 7;
  request.header.call_generation = 9;
  request.header.method = 0x1122;
  request.header.deadline_us = 5000;
  request.body = "thirteen byte";
  Sample cancel;
  cancel.header.kind = FrameKind::kCancel;
  cancel.header.call_slot = 3;
  return {request, cancel};
}

TEST(WireFormatTest, FramesComeOutAsTheyWentIn) {
  SendHeader send;
  send.credits_issued = 123;
  send.credits_returned = 4;
  send.reserve_seen = 2;
  send.flags = kSendStarved;
  const std::string bytes = Encode(send, TwoFrames());
  FrameParser parser(bytes.data(), bytes.size());
  EXPECT_EQ(parser.header().credits_issued, 123u);
  EXPECT_EQ(parser.header().credits_returned, 4u);
  EXPECT_EQ(parser.header().reserve_seen, 2u);
  ASSERT_TRUE(parser.Next());
  EXPECT_EQ(parser.frame().kind, FrameKind::kRequest);
  EXPECT_EQ(parser.frame().call_generation, 9u);
  EXPECT_EQ(parser.frame().method, 0x1122u);
  EXPECT_EQ(std::string(parser.body(), parser.frame().body_bytes), "thirteen byte");
  ASSERT_TRUE(parser.Next());
  EXPECT_EQ(parser.frame().kind, FrameKind::kCancel);
  EXPECT_EQ(parser.frame().body_bytes, 0u);
  EXPECT_FALSE(parser.Next());
  EXPECT_EQ(parser.fault(), WireFault::kNone);
}

// The offsets that proto/WIRE.md states.
TEST(WireFormatTest, FieldsLieWhereTheSpecificationSays) {
  EXPECT_EQ(offsetof(SendHeader, flags), 0u);
  EXPECT_EQ(offsetof(SendHeader, frame_count), 2u);
  EXPECT_EQ(offsetof(SendHeader, credits_issued), 4u);
  EXPECT_EQ(offsetof(SendHeader, credits_returned), 8u);
  EXPECT_EQ(offsetof(SendHeader, reserve_seen), 12u);
  EXPECT_EQ(offsetof(FrameHeader, call_slot), 0u);
  EXPECT_EQ(offsetof(FrameHeader, method), 2u);
  EXPECT_EQ(offsetof(FrameHeader, call_generation), 4u);
  EXPECT_EQ(offsetof(FrameHeader, deadline_us), 8u);
  EXPECT_EQ(offsetof(FrameHeader, body_bytes), 12u);
  EXPECT_EQ(offsetof(FrameHeader, kind), 16u);
  EXPECT_EQ(offsetof(FrameHeader, flags), 17u);
  EXPECT_EQ(offsetof(FrameHeader, status_code), 18u);
  EXPECT_EQ(offsetof(FrameHeader, outcome), 19u);
  EXPECT_EQ(offsetof(FrameHeader, argument), 20u);
  EXPECT_EQ(offsetof(CompactHeader, flags), 0u);
  EXPECT_EQ(offsetof(CompactHeader, credits_issued), 2u);
  EXPECT_EQ(offsetof(CompactHeader, call_generation), 4u);
  EXPECT_EQ(offsetof(CompactHeader, call_slot), 8u);
  EXPECT_EQ(offsetof(CompactHeader, method), 10u);
}

// A compact SEND of one frame, made in the buffer of a full one.
std::string Compact(const SendHeader& send, const FrameHeader& frame, const std::string& body) {
  std::string buffer(sizeof(SendHeader) + sizeof(FrameHeader), '\xee');
  buffer += body;
  char* const at = buffer.data() + buffer.size() - body.size();
  const size_t header_bytes = WriteCompact(send, frame, at);
  return {at - header_bytes, header_bytes + body.size()};
}

FrameHeader Called() {
  FrameHeader frame;
  frame.call_slot = 0xfedc;
  frame.call_generation = 0x12345678;
  frame.method = 0x4321;
  return frame;
}

TEST(WireFormatTest, CompactSendsComeOutAsTheyWentIn) {
  SendHeader send;
  send.credits_issued = 0x56789abc;
  std::vector<FrameHeader> frames(4, Called());
  frames[1].deadline_us = 77;
  frames[2].flags = kFrameHasBulk;
  frames[2].deadline_us = ~uint32_t{0};
  frames[3].kind = FrameKind::kResponse;
  frames[3].flags = kFrameHasBulk;
  for (uint8_t flags : {uint8_t{0}, kSendStarved}) {
    send.flags = flags;
    for (const FrameHeader& frame : frames) {
      ASSERT_TRUE(HasCompactForm(frame));
      const std::string bytes = Compact(send, frame, "any length");
      EXPECT_EQ(bytes.size(), (frame.deadline_us == 0 ? 12u : 16u) + 10);
      FrameParser parser(bytes.data(), bytes.size());
      EXPECT_TRUE(parser.header().is_compact());
      EXPECT_EQ(parser.header().flags & kSendKnownFlags, flags);
      EXPECT_EQ(parser.header().credits_issued, 0x9abcu);
      ASSERT_TRUE(parser.Next());
      EXPECT_TRUE(parser.at_last());
      EXPECT_EQ(parser.frame().kind, frame.kind);
      EXPECT_EQ(parser.frame().flags, frame.flags);
      EXPECT_EQ(parser.frame().call_slot, 0xfedc);
      EXPECT_EQ(parser.frame().call_generation, 0x12345678u);
      EXPECT_EQ(parser.frame().method, 0x4321);
      EXPECT_EQ(parser.frame().deadline(), frame.deadline_us);
      EXPECT_EQ(parser.frame().status_code, 0);
      EXPECT_EQ(std::string(parser.body(), parser.frame().body_bytes), "any length");
      EXPECT_FALSE(parser.Next());
      EXPECT_EQ(parser.fault(), WireFault::kNone);
    }
  }
}

TEST(WireFormatTest, AFrameThatSaysMoreHasNoCompactForm) {
  FrameHeader frame = Called();
  frame.set_deadline(uint64_t{1} << 32);
  EXPECT_FALSE(HasCompactForm(frame));
  frame = Called();
  frame.kind = FrameKind::kResponse;
  frame.status_code = 5;
  EXPECT_FALSE(HasCompactForm(frame));
  for (FrameKind kind : {FrameKind::kCancel, FrameKind::kPing, FrameKind::kReturn}) {
    frame = Called();
    frame.kind = kind;
    EXPECT_FALSE(HasCompactForm(frame)) << static_cast<int>(kind);
  }
}

TEST(WireFormatTest, ACompactHeaderThatIsCutOffOrUnknownIsAFault) {
  FrameHeader frame = Called();
  frame.deadline_us = 77;
  const std::string bytes = Compact({}, frame, "");
  for (size_t size = 1; size < bytes.size(); ++size) {
    // Memory of exactly this size, so that AddressSanitizer sees a read past it.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    FrameParser parser(cut.data(), cut.size());
    EXPECT_EQ(parser.fault(), WireFault::kTruncatedHeader) << size;
    EXPECT_FALSE(parser.Next());
  }
  for (int flag : {1, 0x40, int{kCompactResponse}}) {
    std::string changed = bytes;
    changed[0] = static_cast<char>(changed[0] | flag);
    EXPECT_EQ(FaultOf(changed), WireFault::kUnknownFlags) << flag;
  }
  std::string changed = bytes;
  changed[1] = 1;
  EXPECT_EQ(FaultOf(changed), WireFault::kUnknownFlags);
}

TEST(WireFormatTest, ASendCutOffAnywhereIsAFault) {
  const std::string bytes = Encode({}, TwoFrames());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(FaultOf(bytes.substr(0, size)), WireFault::kNone) << "cut to " << size;
  }
}

TEST(WireFormatTest, BytesAfterTheLastFrameAreAFault) {
  EXPECT_EQ(FaultOf(Encode({}, TwoFrames()) + std::string(8, '\0')), WireFault::kTrailingBytes);
  EXPECT_EQ(FaultOf(Encode({}, {}) + "x"), WireFault::kTrailingBytes);
}

TEST(WireFormatTest, ABodyLengthThatWrapsAroundIsAFault) {
  std::string bytes = Encode({}, TwoFrames());
  for (uint32_t length : {0xffffffffu, 0xfffffff9u, 0xffffffe0u, 0x80000000u}) {
    std::memcpy(bytes.data() + sizeof(SendHeader) + offsetof(FrameHeader, body_bytes), &length,
                sizeof(length));
    EXPECT_EQ(FaultOf(bytes), WireFault::kTruncatedFrame) << length;
  }
}

TEST(WireFormatTest, AnUnknownKindIsAFault) {
  std::vector<Sample> frames = TwoFrames();
  for (uint8_t kind : {0, 16, 255}) {
    frames[0].header.kind = static_cast<FrameKind>(kind);
    EXPECT_EQ(FaultOf(Encode({}, frames)), WireFault::kUnknownKind) << int{kind};
  }
}

TEST(WireFormatTest, UnknownFlagsAndReservedBytesAreAFault) {
  SendHeader send;
  send.flags = 0x40;
  EXPECT_EQ(FaultOf(Encode(send, {})), WireFault::kUnknownFlags);
  send = {};
  send.reserved = 1;
  EXPECT_EQ(FaultOf(Encode(send, {})), WireFault::kUnknownFlags);
  send = {};
  send.reserved_too = 1;
  EXPECT_EQ(FaultOf(Encode(send, {})), WireFault::kUnknownFlags);
  std::vector<Sample> frames = TwoFrames();
  frames[1].header.flags = 2;
  EXPECT_EQ(FaultOf(Encode({}, frames)), WireFault::kUnknownFlags);
  // Only a request and a response can tell of bulk.
  frames[1].header.flags = kFrameHasBulk;
  frames[1].header.kind = FrameKind::kPing;
  EXPECT_EQ(FaultOf(Encode({}, frames)), WireFault::kUnknownFlags);
  frames[1].header.kind = FrameKind::kResponse;
  EXPECT_EQ(FaultOf(Encode({}, frames)), WireFault::kNone);
}

TEST(WireFormatTest, FramesInAReserveSendAreAFault) {
  SendHeader send;
  send.flags = kSendSpendsReserve;
  EXPECT_EQ(FaultOf(Encode(send, {})), WireFault::kNone);
  EXPECT_EQ(FaultOf(Encode(send, TwoFrames())), WireFault::kReserveWithFrames);
}

// Seeded, so that a failure repeats. Under AddressSanitizer a read past the end is found as well:
// each input has its own allocation of exactly its size.
TEST(WireFormatTest, MutatedSendsNeverYieldAFrameOutsideTheirBytes) {
  std::mt19937 random(20240501);
  const std::string goods[] = {Encode({}, TwoFrames()), Compact({}, Called(), "thirteen byte")};
  for (int round = 0; round < 20000; ++round) {
    const std::string& good = goods[round % 2];
    std::vector<char> bytes(good.begin(), good.begin() + random() % (good.size() + 1));
    for (int flips = random() % 6; flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.shrink_to_fit();
    FrameParser parser(bytes.data(), bytes.size());
    size_t sum = 0;
    while (parser.Next()) {
      ASSERT_GE(parser.body(), bytes.data());
      ASSERT_LE(parser.body() + parser.frame().body_bytes, bytes.data() + bytes.size());
      for (uint32_t i = 0; i < parser.frame().body_bytes; ++i) sum += parser.body()[i];
    }
    ASSERT_NE(sum, size_t{1} << 60);
  }
}

}  // namespace wire_format_test
}  // namespace verbena::internal
