// Proves that connection messages survive encoding, and that decoding refuses every byte sequence
// that encoding cannot make.

#include "verbena/transport/preload/cm_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace verbena::internal::preload {
namespace {

using Bytes = std::array<uint8_t, kCmMessageBytes>;

CmMessage Request() {
  CmMessage message;
  message.kind = CmKind::kRequest;
  for (size_t i = 0; i < message.gid.size(); ++i) message.gid[i] = static_cast<uint8_t>(i + 1);
  message.lid = 0x1234;
  message.qpn = 0xabcdef;
  message.psn = 0x123456;
  message.mtu = 5;
  message.responder_resources = 16;
  message.initiator_depth = 3;
  message.retry_count = 7;
  message.rnr_retry_count = 6;
  message.flow_control = true;
  message.srq = true;
  message.private_bytes = 56;
  for (size_t i = 0; i < 56; ++i) message.private_data[i] = static_cast<uint8_t>(200 - i);
  return message;
}

CmMessage Reply() {
  CmMessage message = Request();
  message.kind = CmKind::kReply;
  message.private_bytes = 196;
  message.private_data.fill(0x5a);
  return message;
}

CmMessage Reject() {
  CmMessage message;
  message.kind = CmKind::kReject;
  message.reason = kCmConsumerDefined;
  message.private_bytes = 3;
  message.private_data = {7, 8, 9};
  return message;
}

CmMessage Plain(CmKind kind) {
  CmMessage message;
  message.kind = kind;
  return message;
}

std::array<CmMessage, 5> AllKinds() {
  return {Request(), Reply(), Plain(CmKind::kReady), Reject(), Plain(CmKind::kDisconnect)};
}

// The text with which bytes are refused; empty if they are taken.
std::string Refusal(const Bytes& bytes) {
  return std::string(DecodeCmMessage(bytes).status().message());
}

TEST(RdmaCmMessageTest, EachKindSurvives) {
  for (const CmMessage& message : AllKinds()) {
    auto decoded = DecodeCmMessage(EncodeCmMessage(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, message) << static_cast<int>(message.kind);
  }
}

// Offsets are part of the format: another version of the library may be at the other end.
TEST(RdmaCmMessageTest, FieldsAreWhereTheFormatSays) {
  const Bytes bytes = EncodeCmMessage(Request());
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 4), "VbCM");
  EXPECT_EQ(bytes[4], 1);
  EXPECT_EQ(bytes[5], 1);
  EXPECT_EQ(bytes[6], 2);
  EXPECT_EQ(bytes[9], 7);
  EXPECT_EQ(bytes[10], 6);
  EXPECT_EQ(bytes[16], 1);
  EXPECT_EQ(bytes[32], 0x12);
  EXPECT_EQ(bytes[37], 0xab);
  EXPECT_EQ(bytes[41], 0x12);
  EXPECT_EQ(bytes[44], 16);
  EXPECT_EQ(bytes[45], 3);
  EXPECT_EQ(bytes[46], 5);
  EXPECT_EQ(bytes[47], 56);
  EXPECT_EQ(bytes[60], 200);
}

// Each byte of each kind takes each value: either it is refused, or it means something that encodes
// to the same bytes.
TEST(RdmaCmMessageTest, TakesNothingThatEncodingCannotMake) {
  for (const CmMessage& message : AllKinds()) {
    const Bytes sound = EncodeCmMessage(message);
    for (size_t at = 0; at < sound.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        Bytes bytes = sound;
        bytes[at] = static_cast<uint8_t>(value);
        auto decoded = DecodeCmMessage(bytes);
        if (!decoded.ok()) continue;
        ASSERT_EQ(EncodeCmMessage(*decoded), bytes) << "byte " << at << " is " << value;
      }
    }
  }
}

TEST(RdmaCmMessageTest, RefusesMorePrivateDataThanItsKindCarries) {
  for (const CmMessage& message : AllKinds()) {
    Bytes bytes = EncodeCmMessage(message);
    const size_t limit = CmPrivateLimit(message.kind);
    bytes[47] = static_cast<uint8_t>(limit + 1);
    EXPECT_NE(Refusal(bytes).find("private data"), std::string::npos)
        << static_cast<int>(message.kind) << ": " << Refusal(bytes);
  }
}

TEST(RdmaCmMessageTest, RefusalsNameTheFieldAndItsValue) {
  struct Case {
    size_t at;
    uint8_t value;
    const char* text;
  };
  constexpr Case kCases[] = {
      {0, 'X', "magic"},         {4, 2, "version is 2"},       {5, 0, "kind is 0"},
      {5, 6, "kind is 6"},       {6, 4, "transport is 4"},     {7, 2, "flow control is 2"},
      {8, 255, "SRQ is 255"},    {9, 8, "retry count is 8"},   {10, 9, "RNR retry count is 9"},
      {11, 1, "reserved bytes"}, {35, 1, "reason is 1"},       {36, 1, "queue pair number is"},
      {40, 1, "PSN is"},         {46, 6, "MTU is 6"},          {46, 0, "MTU is 0"},
      {59, 1, "reserved bytes"}, {116, 1, "bytes behind the"},
  };
  for (const Case& each : kCases) {
    Bytes bytes = EncodeCmMessage(Request());
    bytes[each.at] = each.value;
    EXPECT_NE(Refusal(bytes).find(each.text), std::string::npos)
        << "byte " << each.at << ": " << Refusal(bytes);
  }
}

// A queue pair is described by requests and replies alone.
TEST(RdmaCmMessageTest, RefusesAQueuePairInAMessageWithoutOne) {
  Bytes bytes = EncodeCmMessage(Plain(CmKind::kDisconnect));
  bytes[39] = 1;
  EXPECT_NE(Refusal(bytes), "");
}

TEST(RdmaCmMessageTest, RefusesZerosAndNoise) {
  Bytes bytes = {};
  EXPECT_NE(Refusal(bytes), "");
  uint32_t state = 1;
  for (int round = 0; round < 1000; ++round) {
    std::ranges::generate(bytes, [&] {
      state = state * 1664525 + 1013904223;
      return static_cast<uint8_t>(state >> 24);
    });
    ASSERT_NE(Refusal(bytes), "");
  }
}

}  // namespace
}  // namespace verbena::internal::preload
