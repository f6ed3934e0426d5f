// The copy of a peer's ring shows a message when its last byte has arrived, however the bytes come,
// overwrites nothing that the reader has not consumed, and follows no control word out of the ring.

#include "verbena/transport/soft/ring.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal::soft {
namespace ring_intake_test {

constexpr uint32_t kLines = 2048;

class RingIntakeTest : public testing::Test {
 protected:
  // Sends what the writer has published since, in pieces of at most `piece` bytes.
  bool Transfer(size_t piece) {
    while (sent_ != writer_.position()) {
      const uint64_t to = writer_.EndOfRun(sent_);
      if (!intake_.Begin(static_cast<uint32_t>(to - sent_), reader_.position())) return false;
      const auto* from = reinterpret_cast<const std::byte*>(&theirs_[sent_ % kLines]);
      while (!intake_.Rest().empty()) {
        const size_t bytes = std::min(piece, intake_.Rest().size());
        std::memcpy(intake_.Rest().data(), from, bytes);
        from += bytes;
        intake_.Add(bytes);
        if (!intake_.Show()) return false;
      }
      if (writer_.IsPad(to) && !intake_.Pad(reader_.position())) return false;
      sent_ = writer_.IsPad(to) ? writer_.NextStart(to) : to;
    }
    return true;
  }
  bool Publish(uint32_t number, size_t bytes) {
    std::byte* payload = writer_.Reserve(bytes);
    if (payload == nullptr) return false;
    std::memset(payload, static_cast<int>(number), bytes);
    writer_.Publish({.opcode = Opcode::kSend,
                     .length = static_cast<uint16_t>(bytes),
                     .immediate = number,
                     .destination = 2});
    return true;
  }

  std::unique_ptr<RingLine[]> theirs_{new RingLine[kLines]()};
  std::unique_ptr<RingLine[]> ours_{new RingLine[kLines]()};
  RingWriter writer_{theirs_.get(), kLines};
  RingIntake intake_{ours_.get(), kLines};
  RingReader reader_{ours_.get(), kLines};
  uint64_t sent_ = 0;
};

TEST_F(RingIntakeTest, MessageShowsWhenItsLastByteHasArrived) {
  ASSERT_TRUE(Publish(7, 200));
  const auto lines = static_cast<uint32_t>(writer_.position());
  ASSERT_TRUE(intake_.Begin(lines, 0));
  const auto* from = reinterpret_cast<const std::byte*>(theirs_.get());
  MessageHeader header;
  for (size_t i = 0; i < size_t{lines} * kLineBytes; ++i) {
    EXPECT_EQ(reader_.Peek(header), RingReader::State::kEmpty) << i;
    *intake_.Rest().data() = from[i];
    intake_.Add(1);
    ASSERT_TRUE(intake_.Show());
  }
  ASSERT_EQ(reader_.Peek(header), RingReader::State::kMessage);
  EXPECT_EQ(header.immediate, 7u);
  EXPECT_EQ(header.length, 200);
  EXPECT_EQ(intake_.messages(), 1u);
}

TEST_F(RingIntakeTest, MessagesOfAllSizesCrossManyLapsInPiecesOfAllSizes) {
  uint32_t published = 0;
  uint32_t consumed = 0;
  uint64_t random = 88172645463325252u;
  const auto next = [&random] {
    random ^= random << 13;
    random ^= random >> 7;
    return random ^= random << 17;
  };
  while (consumed < 20'000) {
    while (published - consumed < 40 && Publish(published, next() % 3 == 0 ? next() % 16384 : 20)) {
      ++published;
    }
    ASSERT_TRUE(Transfer(1 + next() % 3000));
    MessageHeader header;
    for (uint64_t left = 1 + next() % 40; left != 0; --left) {
      const RingReader::State state = reader_.Peek(header);
      ASSERT_NE(state, RingReader::State::kBroken);
      if (state == RingReader::State::kEmpty) break;
      ASSERT_EQ(header.immediate, consumed);
      for (size_t i = 0; i < header.length; i += 61) {
        ASSERT_EQ(reader_.payload()[i], static_cast<std::byte>(consumed));
      }
      reader_.Consume(header);
      ++consumed;
    }
    ASSERT_TRUE(writer_.Release(reader_.position()));
  }
}

TEST_F(RingIntakeTest, LinesNeverOverwriteWhatIsNotConsumed) {
  // The ring less the line that holds the 0 behind the last message.
  EXPECT_FALSE(intake_.Begin(kLines, 0));
  EXPECT_TRUE(intake_.Begin(kLines - 1, 0));
}

TEST_F(RingIntakeTest, ControlWordThatMakesNoSenseIsNotFollowed) {
  const uint64_t controls[] = {
      0,
      0x99,
      MessageHeader{.opcode = Opcode::kPad}.Control(),
      MessageHeader{.opcode = Opcode::kSend, .length = kMaxFragmentBytes + 1}.Control(),
      MessageHeader{.opcode = Opcode::kWrite, .flags = kFirst | kLast | kPlaced}.Control(),
      MessageHeader{.opcode = Opcode::kSend, .flags = 1 << 7}.Control()};
  for (const uint64_t control : controls) {
    RingIntake intake(ours_.get(), kLines);
    ASSERT_TRUE(intake.Begin(1, 0));
    std::memcpy(intake.Rest().data(), &control, sizeof(control));
    intake.Add(kLineBytes);
    EXPECT_FALSE(intake.Show()) << control;
    // The reader does not see it either.
    MessageHeader header;
    EXPECT_EQ(reader_.Peek(header), RingReader::State::kEmpty);
  }
}

TEST_F(RingIntakeTest, MessageThatCrossesTheEndOfTheRingIsRefused) {
  ASSERT_TRUE(intake_.Begin(kLines - 1, 0));
  const uint64_t line = MessageHeader{.opcode = Opcode::kSend}.Control();
  for (uint32_t i = 0; i < kLines - 1; ++i) {
    std::memcpy(intake_.Rest().data(), &line, sizeof(line));
    intake_.Add(kLineBytes);
  }
  ASSERT_TRUE(intake_.Show());
  EXPECT_FALSE(intake_.Begin(2, 100));
  ASSERT_TRUE(intake_.Begin(1, 100));
  const uint64_t two = MessageHeader{.opcode = Opcode::kSend, .length = 60}.Control();
  std::memcpy(intake_.Rest().data(), &two, sizeof(two));
  intake_.Add(kLineBytes);
  EXPECT_FALSE(intake_.Show());
}

TEST_F(RingIntakeTest, MessageIsKnownWithItsFirstLineUntilItsLastByte) {
  ASSERT_TRUE(Publish(7, 200));
  ASSERT_TRUE(Publish(8, 20));
  ASSERT_TRUE(intake_.Begin(static_cast<uint32_t>(writer_.position()), 0));
  const auto* from = reinterpret_cast<const std::byte*>(theirs_.get());
  const size_t last_byte = size_t{LinesOf(200)} * kLineBytes - 1;
  for (size_t i = 0; i < last_byte; ++i) {
    RingIntake::Incomplete message;
    EXPECT_EQ(intake_.FindIncomplete(message), i >= kLineBytes) << i;
    EXPECT_EQ(intake_.ToHead(), i < kLineBytes ? kLineBytes - i : 0);
    if (i >= kLineBytes) {
      EXPECT_EQ(message.position, 0u);
      EXPECT_EQ(message.header.length, 200);
      EXPECT_EQ(message.header.immediate, 7u);
      EXPECT_EQ(message.header.destination, 2u);
      EXPECT_EQ(message.arrived, std::min<size_t>(i - kHeaderBytes, 200));
      EXPECT_EQ(message.missing, last_byte + 1 - i);
      EXPECT_EQ(message.payload, ours_[0].payload);
    }
    *intake_.Rest().data() = from[i];
    intake_.Add(1);
    ASSERT_TRUE(intake_.Show());
  }
  *intake_.Rest().data() = from[last_byte];
  intake_.Add(1);
  ASSERT_TRUE(intake_.Show());
  RingIntake::Incomplete message;
  EXPECT_FALSE(intake_.FindIncomplete(message));
  EXPECT_EQ(intake_.ToHead(), kLineBytes);
}

TEST_F(RingIntakeTest, PadInTheMiddleOfAMessageIsRefused) {
  ASSERT_TRUE(Publish(1, 200));
  ASSERT_TRUE(intake_.Begin(1, 0));
  std::memcpy(intake_.Rest().data(), theirs_.get(), kLineBytes);
  intake_.Add(kLineBytes);
  ASSERT_TRUE(intake_.Show());
  EXPECT_FALSE(intake_.Pad(0));
}

TEST_F(RingIntakeTest, PadAtTheStartIsRefused) { EXPECT_FALSE(intake_.Pad(0)); }

}  // namespace ring_intake_test
}  // namespace verbena::internal::soft
