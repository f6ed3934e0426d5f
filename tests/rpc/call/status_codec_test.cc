// The code of a failed Status always arrives at the client, whatever its text and details are.

#include "verbena/rpc/call/status_codec.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace status_codec_test {

constexpr size_t kRoom = 4000;

absl::Status Carried(const absl::Status& status, size_t max_bytes = kRoom) {
  const std::string body = EncodeStatusBody(status, max_bytes);
  EXPECT_LE(body.size(), max_bytes);
  return DecodeStatus(static_cast<uint8_t>(status.code()), body.data(), body.size());
}

TEST(StatusCodecTest, AMessageOfAnyBytesArrives) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const absl::Status carried = Carried(absl::NotFoundError(bytes));
  EXPECT_EQ(carried.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(carried.message(), bytes);
}

TEST(StatusCodecTest, DetailsOfAnyBytesArrive) {
  absl::Status status = absl::AbortedError("\xff");
  status.SetPayload("type.example/\xfe", absl::Cord(absl::string_view("\xff\0\x80", 3)));
  const absl::Status carried = Carried(status);
  EXPECT_EQ(carried.code(), status.code());
  EXPECT_EQ(carried.message(), status.message());
  const auto detail = carried.GetPayload("type.example/\xfe");
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(std::string(*detail), std::string("\xff\0\x80", 3));
}

TEST(StatusCodecTest, AMessageThatIsCutArrivesInWholeCharacters) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "a\u00e9\u20ac\U0001f600";
  for (size_t room = 0; room < text.size() + 20; ++room) {
    const absl::Status carried = Carried(absl::NotFoundError(text), room);
    EXPECT_EQ(carried.code(), absl::StatusCode::kNotFound) << room;
    const std::string message(carried.message());
    EXPECT_EQ(text.compare(0, message.size(), message), 0);
    // The next byte begins a character.
    if (message.size() < text.size()) {
      EXPECT_NE(text[message.size()] & 0xc0, 0x80) << room;
    }
  }
}

TEST(StatusCodecTest, AMessageThatIsNotTextIsCutAnywhere) {
  const std::string bytes(1000, '\x80');
  EXPECT_EQ(Carried(absl::NotFoundError(bytes), 100).message().size(), 84u);
}

TEST(StatusCodecTest, TheCodeArrivesThoughTheBodyDoesNotParse) {
  for (const std::string& body : {std::string("\xff\xff\xff"), std::string("\x0a\x7f")}) {
    const absl::Status status =
        DecodeStatus(static_cast<uint8_t>(absl::StatusCode::kNotFound), body.data(), body.size());
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_FALSE(status.message().empty());
  }
}

TEST(StatusCodecTest, ACodeThatIsNotCanonicalIsUnknown) {
  for (const uint8_t code : {0, 17, 255}) {
    EXPECT_EQ(DecodeStatus(code, nullptr, 0).code(), absl::StatusCode::kUnknown);
  }
}

TEST(StatusCodecTest, AStatusOfTooManyDetailsIsCutShort) {
  absl::Status sent = absl::DataLossError("as asked");
  for (int i = 0; i < 3 * kMaxDetails; ++i) {
    const std::string detail(1, 'd');
    sent.SetPayload("type.example/" + std::to_string(i), absl::Cord(detail));
  }
  const std::string body = EncodeStatusBody(sent, kMaxFailureBytes);
  const absl::Status got =
      DecodeStatus(static_cast<uint8_t>(sent.code()), body.data(), body.size());
  int details = 0;
  got.ForEachPayload([&details](auto, const auto&) { ++details; });
  EXPECT_EQ(details, kMaxDetails);
  EXPECT_EQ(got.message(), "as asked");
}

}  // namespace status_codec_test
}  // namespace verbena::internal
