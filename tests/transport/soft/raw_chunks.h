// Chunks of a RawTcpPeer: those of large WRITEs and of READs, which a test may send in parts, and
// those that the device sends.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_RAW_CHUNKS_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_RAW_CHUNKS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/raw_tcp_peer.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {

// A WRITE in two fragments of the largest size.
struct RawWrite {
  std::byte fill{0};
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t qpn = 0;
  uint16_t psn = 0;  // of the first fragment
  uint8_t first_flags = 0;
  uint8_t last_flags = 0;

  static constexpr uint32_t kFirstBytes = kMaxFragmentBytes - sizeof(TargetRange);
  static constexpr uint32_t kBytes = kFirstBytes + kMaxFragmentBytes;
  // The part of its chunk up to the second fragment, and one up to that fragment's second line: the
  // first line of a fragment is always in the ring.
  static constexpr size_t kUpToSecond =
      TcpChunk::kBytes + size_t{LinesOf(kMaxFragmentBytes)} * kLineBytes;
  static constexpr size_t kUpToSecondLine = kUpToSecond + kLineBytes;
};

// In a chunk of its own.
inline std::vector<std::byte> ChunkOf(const RawWrite& write) {
  std::vector<std::byte> payload(kMaxFragmentBytes, write.fill);
  MessageHeader header{.opcode = Opcode::kWrite,
                       .flags = static_cast<uint8_t>(kLast | write.last_flags),
                       .destination = write.qpn,
                       .source = RawTcpPeer::kQpn,
                       .psn = static_cast<uint16_t>(write.psn + 1)};
  const std::vector<RingLine> last = MessageOf(header, payload);
  const TargetRange range{.address = write.address, .length = RawWrite::kBytes, .rkey = write.rkey};
  std::memcpy(payload.data(), &range, sizeof(range));
  header.flags = static_cast<uint8_t>(kFirst | write.first_flags);
  header.psn = write.psn;
  const std::vector<RingLine> first = MessageOf(header, payload);
  std::vector<RingLine> both(first.size() + last.size());
  const size_t first_bytes = first.size() * kLineBytes;
  auto* const lines = reinterpret_cast<std::byte*>(both.data());
  std::memcpy(lines, first.data(), first_bytes);
  std::memcpy(lines + first_bytes, last.data(), last.size() * kLineBytes);
  return ChunkOf({}, both);
}

// A READ of `range` by our QP, in a chunk of its own.
inline std::vector<std::byte> ReadChunkOf(const TargetRange& range, uint32_t qpn,
                                          uint16_t psn = 0) {
  const MessageHeader read{.opcode = Opcode::kRead,
                           .flags = kFirst | kLast,
                           .destination = qpn,
                           .source = RawTcpPeer::kQpn,
                           .psn = psn};
  return ChunkOf({}, MessageOf(read, std::as_bytes(std::span(&range, size_t{1}))));
}

struct HeardChunk {
  TcpChunk chunk;
  std::vector<std::byte> lines;  // of requests, then of answers

  const std::byte* answers() const {
    return lines.data() + size_t{chunk.request_lines} * kLineBytes;
  }
  // The position of the answers once these are taken, if it was `position` before.
  uint64_t PositionAfter(uint64_t position) const {
    position += chunk.answer_lines;
    const bool pads = (chunk.flags & TcpChunk::kAnswerPad) != 0;
    return pads ? (position | (LaneGeometry{}.answer_lines - 1)) + 1 : position;
  }
};

inline HeardChunk HearChunk(RawSocket& lanes) {
  HeardChunk heard;
  std::array<std::byte, TcpChunk::kBytes> header;
  EXPECT_TRUE(lanes.Receive(header));
  EXPECT_TRUE(ParseChunk(header, heard.chunk));
  heard.lines.resize((size_t{heard.chunk.request_lines} + heard.chunk.answer_lines) * kLineBytes);
  // To receive no bytes would wait for the next ones.
  EXPECT_TRUE(heard.lines.empty() || lanes.Receive(heard.lines));
  return heard;
}

// The reason of the next refusal. No answers but refusals come over `lanes`.
inline NakReason ReasonOfRefusal(RawSocket& lanes) {
  RefusedFragment refusal{};
  HeardChunk heard;
  while (heard.chunk.answer_lines == 0 && !testing::Test::HasFailure()) heard = HearChunk(lanes);
  if (heard.chunk.answer_lines != 0) {
    std::memcpy(&refusal, heard.answers() + kHeaderBytes, sizeof(refusal));
  }
  return refusal.reason;
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_RAW_CHUNKS_H_
