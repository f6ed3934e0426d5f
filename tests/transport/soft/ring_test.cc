// The ring passes messages whole and in order, and detects each senseless word that a peer writes.
// Two threads share one mapping, as ThreadSanitizer cannot see two processes.

#include "verbena/transport/soft/ring.h"

#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/transport/soft/shared_memory.h"

namespace verbena::internal::soft {
namespace ring_test {

constexpr uint32_t kLines = 2048;

class RingTest : public testing::Test {
 protected:
  RingTest()
      : region_(SharedRegion::Create("ring-test", kLines * kLineBytes).value()),
        lines_(reinterpret_cast<RingLine*>(region_.data())),
        writer_(lines_, kLines),
        reader_(lines_, kLines) {}

  bool Write(uint16_t bytes, uint32_t value) {
    std::byte* payload = writer_.Reserve(bytes);
    if (payload == nullptr) return false;
    std::memset(payload, static_cast<int>(value & 0xff), bytes);
    writer_.Publish({.opcode = Opcode::kSend, .length = bytes, .immediate = value});
    return true;
  }

  SharedRegion region_;
  RingLine* lines_;
  RingWriter writer_;
  RingReader reader_;
};

TEST_F(RingTest, MessagesCrossBetweenThreadsInOrderAndWhole) {
  constexpr uint32_t kMessages = 200'000;
  std::atomic<uint64_t> consumed{0};
  std::thread producer([&] {
    for (uint32_t i = 0; i < kMessages;) {
      if (Write(static_cast<uint16_t>(i * 31 % 3000), i)) {
        ++i;
      } else {
        ASSERT_TRUE(writer_.Release(consumed.load(std::memory_order_acquire)));
        std::this_thread::yield();
      }
    }
  });
  MessageHeader header;
  for (uint32_t i = 0; i < kMessages;) {
    if (reader_.Peek(header) == RingReader::State::kEmpty) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(header.immediate, i);
    ASSERT_EQ(header.length, i * 31 % 3000);
    for (uint32_t byte = 0; byte < header.length; byte += 97) {
      ASSERT_EQ(reader_.payload()[byte], std::byte(i & 0xff));
    }
    reader_.Consume(header);
    consumed.store(reader_.position(), std::memory_order_release);
    ++i;
  }
  producer.join();
}

TEST_F(RingTest, FullRingRefusesUntilLinesAreReleased) {
  uint32_t written = 0;
  while (Write(1000, written)) ++written;
  EXPECT_LT(written * LinesOf(1000), kLines);
  EXPECT_FALSE(Write(1000, 0));
  MessageHeader header;
  ASSERT_EQ(reader_.Peek(header), RingReader::State::kMessage);
  reader_.Consume(header);
  EXPECT_FALSE(Write(1000, 0)) << "reading alone frees nothing";
  ASSERT_TRUE(writer_.Release(reader_.position()));
  EXPECT_TRUE(Write(1000, written));
}

TEST_F(RingTest, PayloadThatLooksLikeAMessageIsNeverTakenForOne) {
  // Fill every line with what would be a valid control word, through payloads.
  const uint64_t decoy = MessageHeader{.opcode = Opcode::kSend, .length = 8}.Control();
  std::vector<uint64_t> decoys(1000, decoy);
  MessageHeader header;
  for (int round = 0; round < 200; ++round) {
    std::byte* payload = writer_.Reserve(decoys.size() * sizeof(decoy));
    ASSERT_NE(payload, nullptr);
    std::memcpy(payload, decoys.data(), decoys.size() * sizeof(decoy));
    writer_.Publish({.opcode = Opcode::kWrite, .length = 8000});
    ASSERT_EQ(reader_.Peek(header), RingReader::State::kMessage);
    ASSERT_EQ(header.opcode, Opcode::kWrite);
    reader_.Consume(header);
    ASSERT_EQ(reader_.Peek(header), RingReader::State::kEmpty);
    ASSERT_TRUE(writer_.Release(reader_.position()));
  }
}

TEST_F(RingTest, ProgressOutOfBoundsIsRefused) {
  ASSERT_TRUE(Write(100, 0));
  const uint64_t end = writer_.position();
  EXPECT_FALSE(writer_.Release(end + 1));
  EXPECT_FALSE(writer_.Release(~uint64_t{0}));
  EXPECT_TRUE(writer_.Release(end));
  EXPECT_FALSE(writer_.Release(end - 1)) << "progress never goes back";
  EXPECT_EQ(writer_.released(), end);
}

TEST_F(RingTest, ControlWordsThatMakeNoSenseAreBroken) {
  MessageHeader header;
  for (uint64_t control :
       {uint64_t{0xff}, uint64_t{kLastOpcode} + 1,
        MessageHeader{.opcode = Opcode::kSend, .length = kMaxFragmentBytes + 1}.Control()}) {
    lines_[0].control.store(control);
    EXPECT_EQ(reader_.Peek(header), RingReader::State::kBroken) << control;
  }
}

TEST_F(RingTest, MessageThatWouldReachPastTheEndOfTheRingIsBroken) {
  while (writer_.position() + LinesOf(kMaxFragmentBytes) < kLines) {
    ASSERT_TRUE(Write(0, 0));
    MessageHeader header;
    ASSERT_EQ(reader_.Peek(header), RingReader::State::kMessage);
    reader_.Consume(header);
    ASSERT_TRUE(writer_.Release(reader_.position()));
  }
  ASSERT_TRUE(Write(0, 0));
  MessageHeader header;
  ASSERT_EQ(reader_.Peek(header), RingReader::State::kMessage);
  reader_.Consume(header);
  lines_[reader_.position()].control.store(
      MessageHeader{.opcode = Opcode::kSend, .length = kMaxFragmentBytes}.Control());
  EXPECT_EQ(reader_.Peek(header), RingReader::State::kBroken);
}

TEST_F(RingTest, TwoPadsInARowAreBroken) {
  const uint64_t pad = MessageHeader{.opcode = Opcode::kPad}.Control();
  lines_[0].control.store(pad);
  MessageHeader header;
  EXPECT_EQ(reader_.Peek(header), RingReader::State::kBroken);
}

TEST(RingDeathTest, ARingThatIsNoPowerOfTwoOrTooSmallAborts) {
  static RingLine line[1];
  EXPECT_DEATH(RingWriter(line, 4095), "lines 4095");
  EXPECT_DEATH(RingWriter(line, 64), "lines 64");
}

}  // namespace ring_test
}  // namespace verbena::internal::soft
