// A chunk that is gathered from a ring and from payloads that are lent has the bytes that the ring
// would have had, and what was not sent is in the ring afterwards.

#include "verbena/transport/soft/ring.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal::soft {
namespace lent_payloads_test {

constexpr uint32_t kLines = 2048;
constexpr uint32_t kBytes = 5000;

class LentPayloadsTest : public testing::Test {
 protected:
  LentPayloadsTest() : memory_(kBytes) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i % 253 + 1);
  }

  // A message of kBytes, of which all but the first `copied` bytes are lent, in two parts. Another
  // ring gets all bytes.
  void Publish(uint32_t copied) {
    const uint64_t position = writer_.position();
    std::memcpy(writer_.Reserve(kBytes), memory_.data(), copied);
    const uint32_t half = (kBytes - copied) / 2;
    lent_.Add(position, copied, memory_.data() + copied, half);
    lent_.Add(position, copied + half, memory_.data() + copied + half, kBytes - copied - half);
    std::memcpy(whole_writer_.Reserve(kBytes), memory_.data(), kBytes);
    const MessageHeader header{.opcode = Opcode::kWrite, .length = kBytes, .destination = 5};
    writer_.Publish(header);
    whole_writer_.Publish(header);
  }
  std::vector<std::byte> Gather(uint64_t from, uint64_t to) {
    std::array<iovec, LentPayloads::kMaxParts> parts;
    const size_t count = lent_.Describe(from, to, parts);
    std::vector<std::byte> bytes;
    for (const iovec& part : std::span(parts).first(count)) {
      const auto* start = static_cast<const std::byte*>(part.iov_base);
      bytes.insert(bytes.end(), start, start + part.iov_len);
    }
    return bytes;
  }
  std::vector<std::byte> Expected(uint64_t from, uint64_t to) {
    const auto* start = reinterpret_cast<const std::byte*>(whole_.get());
    return {start + from, start + to};
  }

  std::vector<std::byte> memory_;
  std::unique_ptr<RingLine[]> lines_{new RingLine[kLines]()};
  std::unique_ptr<RingLine[]> whole_{new RingLine[kLines]()};
  RingWriter writer_{lines_.get(), kLines};
  RingWriter whole_writer_{whole_.get(), kLines};
  LentPayloads lent_{lines_.get(), kLines};
};

TEST_F(LentPayloadsTest, BytesAreThoseOfTheRingWhereverAChunkBeginsAndEnds) {
  Publish(0);
  Publish(48);
  Publish(100);
  const uint64_t end = writer_.position() * kLineBytes;
  for (uint64_t from = 0; from < end; from += 311) {
    for (uint64_t to = from; to <= end; to += 997) {
      ASSERT_EQ(Gather(from, to), Expected(from, to)) << from << " to " << to;
    }
    ASSERT_EQ(Gather(from, end), Expected(from, end)) << from;
  }
}

TEST_F(LentPayloadsTest, RingHasWhatWasNotSent) {
  for (const uint64_t unsent : {0, 16, 17, 3000, 5016, 5056, 7000}) {
    Publish(0);
    const uint64_t start = (writer_.position() - LinesOf(kBytes)) * kLineBytes;
    const LentPayloads::Settlement settled = lent_.Settle(start + unsent);
    EXPECT_EQ(settled.sent + settled.copied, kBytes);
    EXPECT_EQ(settled.sent, unsent < 16 ? 0 : std::min<uint64_t>(unsent - 16, kBytes));
    EXPECT_TRUE(lent_.empty());
    const uint64_t end = writer_.position() * kLineBytes;
    const uint64_t from = std::min(start + unsent, end);
    EXPECT_EQ(Gather(from, end), Expected(from, end)) << unsent;
  }
}

TEST_F(LentPayloadsTest, ChunkEndsBeforeALentMessageThatItHasNotAllOf) {
  Publish(0);
  Publish(0);
  const uint64_t second = LinesOf(kBytes);
  EXPECT_EQ(lent_.WholeMessages(0, second + 10), second);
  EXPECT_EQ(lent_.WholeMessages(0, second), second);
  EXPECT_EQ(lent_.WholeMessages(0, 2 * second), 2 * second);
  // A chunk has to begin with it some time.
  EXPECT_EQ(lent_.WholeMessages(second, second + 10), second + 10);
}

}  // namespace lent_payloads_test
}  // namespace verbena::internal::soft
