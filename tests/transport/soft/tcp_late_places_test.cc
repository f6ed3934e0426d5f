// Messages that a peer sent to a queue pair before it was reset or destroyed do nothing afterwards:
// bytes that come late land nowhere, a fragment that had begun is refused, and a READ ends. The
// device has no engine, so that a request waits for as long as the test does not take it.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_chunks.h"
#include "tests/transport/soft/raw_tcp_peer.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {
namespace tcp_late_places_test {

constexpr size_t kHalf = 2 << 20;
constexpr uint32_t kWriteBytes = RawWrite::kBytes;
constexpr size_t kInFirstLine = kLineBytes - kHeaderBytes;

struct Answer {
  MessageHeader header;
  std::vector<std::byte> payload;

  NakReason reason() const {
    RefusedFragment refusal{};
    std::memcpy(&refusal, payload.data(), std::min(payload.size(), sizeof(refusal)));
    return refusal.reason;
  }
};

class TcpLatePlacesTest : public testing::Test {
 protected:
  void SetUp() override {
    // Until the connection stands.
    const std::jthread engine([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (!device_->Step()) std::this_thread::yield();
      }
    });
    peer_ = std::make_unique<RawTcpPeer>(*device_);
    lanes_ = std::make_unique<RawSocket>(peer_->ConnectLanes(*victim_));
  }

  std::byte* target() { return victim_->receive_buffer(); }
  bool TargetIs(std::byte fill, size_t bytes) {
    return std::all_of(target(), target() + bytes, [&](std::byte byte) { return byte == fill; });
  }
  uint64_t placed() { return device_->copied_bytes().placed_bytes; }
  // Bytes of WRITEs, at their place or out of the ring. The test may look at those that are
  // counted.
  uint64_t stored() { return placed() + device_->copied_bytes().ring_bytes; }

  std::vector<std::byte> WriteOf(std::byte fill, uint16_t psn) {
    return ChunkOf(RawWrite{.fill = fill,
                            .address = reinterpret_cast<uint64_t>(target()),
                            .rkey = victim_->mr()->rkey,
                            .qpn = victim_->qp()->qp_num,
                            .psn = psn});
  }

  // Polls for at most `room` completions until `condition` holds. With no room sockets are read,
  // but no request is executed.
  template <typename Condition>
  void PollUntil(int room, Condition condition) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    ibv_wc wc;
    while (!condition()) {
      ASSERT_EQ(ibv_poll_cq(victim_->cq(), room, &wc), 0);
      ASSERT_LT(std::chrono::steady_clock::now(), late);
    }
  }
  // A WRITE that is executed: its peer is known to send large payloads from here on.
  void WriteBefore(uint16_t psn) {
    const uint64_t before = stored();
    ASSERT_TRUE(lanes_->Send(WriteOf(std::byte{0x11}, psn)));
    PollUntil(1, [&] { return stored() == before + kWriteBytes; });
    EXPECT_TRUE(TargetIs(std::byte{0x11}, kWriteBytes));
  }
  // Resets the queue pair and connects it to the same one again, as if it was new.
  void ConnectAgain() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    ASSERT_TRUE(device_->ModifyQp(victim_->qp(), attributes, IBV_QP_STATE).ok());
    ASSERT_TRUE(victim_->ToInit(victim_->qp()).ok());
    const DeviceAddress& address = peer_->address();
    ASSERT_TRUE(victim_->ToRtr(victim_->qp(), address.gid, RawTcpPeer::kQpn, address.lid).ok());
  }

  // The next answer that the device sends. Polls meanwhile, and says that answers are taken.
  Answer NextAnswer() {
    while (true) {
      if (answers_.size() >= kLineBytes) {
        RingLine line;
        std::memcpy(static_cast<void*>(&line), answers_.data(), sizeof(line));
        const MessageHeader header = MessageHeader::Decode(line.control, line.route);
        const size_t bytes = LinesOf(header.length) * kLineBytes;
        if (answers_.size() >= bytes) {
          const auto payload = answers_.begin() + kHeaderBytes;
          Answer answer{.header = header, .payload = {payload, payload + header.length}};
          answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(bytes));
          return answer;
        }
      }
      ReceiveChunk();
      if (HasFatalFailure()) return {};
    }
  }
  void ReceiveChunk() {
    PollUntil(1, [this] { return lanes_->IsReadable(); });
    const HeardChunk heard = HearChunk(*lanes_);
    ASSERT_EQ(heard.chunk.request_lines, 0u);
    if (heard.chunk.answer_lines == 0) return;
    answers_.insert(answers_.end(), heard.lines.begin(), heard.lines.end());
    taken_ = heard.PositionAfter(taken_);
    ASSERT_TRUE(lanes_->Send(ChunkOf({.answers_consumed = taken_}, {})));
  }

  // Has a READ begin that does not fit the answer ring.
  void BeginRead() {
    std::memset(target(), 0x11, kRead);
    const TargetRange range{.address = reinterpret_cast<uint64_t>(target()),
                            .length = kRead,
                            .rkey = victim_->mr()->rkey};
    ASSERT_TRUE(lanes_->Send(ReadChunkOf(range, victim_->qp()->qp_num)));
    PollUntil(1, [this] { return lanes_->IsReadable(); });
  }
  // Data that were read before the memory was put to another use, and then a refusal.
  void ExpectReadEnds() {
    std::memset(target(), 0x33, kRead);
    uint64_t bytes = 0;
    Answer answer = NextAnswer();
    for (; answer.header.opcode == Opcode::kData && !HasFailure(); answer = NextAnswer()) {
      bytes += answer.payload.size();
      for (const std::byte byte : answer.payload) ASSERT_EQ(byte, std::byte{0x11});
    }
    EXPECT_EQ(answer.header.opcode, Opcode::kRefused);
    EXPECT_EQ(answer.reason(), NakReason::kUnreachable);
    EXPECT_GT(bytes, 0u);
    EXPECT_LT(bytes, kRead);
  }

  static constexpr size_t kPart = 1000;
  static constexpr uint32_t kRead = 1 << 20;
  std::unique_ptr<SoftDevice> device_ =
      SoftDevice::Create({.name = "tcp0",
                          .engine_thread = false,
                          .shared_memory = false,
                          .tcp = TcpWireOptions{.address = "127.0.0.1"}})
          .value();
  std::unique_ptr<QpEnd> victim_ =
      std::make_unique<QpEnd>(*device_, QpEndOptions{.bytes = 2 * kHalf});
  std::unique_ptr<RawTcpPeer> peer_;
  std::unique_ptr<RawSocket> lanes_;
  std::vector<std::byte> answers_;
  uint64_t taken_ = 0;
};

// The first fragment is there, and the second one has begun, when the queue pair is reset.
TEST_F(TcpLatePlacesTest, NoByteLandsOnceTheQpIsReset) {
  WriteBefore(0);
  const std::vector<std::byte> chunk = WriteOf(std::byte{0x77}, 2);
  constexpr size_t kSent = RawWrite::kUpToSecondLine + kPart;
  const uint64_t before = placed();
  ASSERT_TRUE(lanes_->Send(std::span(chunk).first(kSent)));
  const uint64_t after = before + kMaxFragmentBytes - kInFirstLine + kPart;
  PollUntil(0, [&] { return placed() == after; });
  ConnectAgain();
  std::memset(target(), 0, kWriteBytes);
  ASSERT_TRUE(lanes_->Send(std::span(chunk).subspan(kSent)));
  EXPECT_EQ(NextAnswer().reason(), NakReason::kSequence);
  EXPECT_EQ(NextAnswer().reason(), NakReason::kSequence);
  EXPECT_TRUE(TargetIs(std::byte{0}, kWriteBytes));
}

// The fragment has the number that the queue pair expects again.
TEST_F(TcpLatePlacesTest, FragmentThatBeganBeforeAResetIsRefused) {
  WriteBefore(0);
  ConnectAgain();
  const std::vector<std::byte> chunk = WriteOf(std::byte{0x77}, 0);
  constexpr size_t kSent = TcpChunk::kBytes + kLineBytes + kPart;
  const uint64_t before = placed();
  ASSERT_TRUE(lanes_->Send(std::span(chunk).first(kSent)));
  PollUntil(0, [&] { return placed() == before + kPart; });
  ConnectAgain();
  std::memset(target(), 0, kWriteBytes);
  ASSERT_TRUE(lanes_->Send(std::span(chunk).subspan(kSent)));
  EXPECT_EQ(NextAnswer().reason(), NakReason::kAccess);
  EXPECT_EQ(NextAnswer().reason(), NakReason::kUnreachable);
  EXPECT_TRUE(TargetIs(std::byte{0}, kWriteBytes));
}

TEST_F(TcpLatePlacesTest, ReadEndsWithTheQpThatItReadsFrom) {
  BeginRead();
  victim_->qp_handle().Reset();
  ExpectReadEnds();
}

TEST_F(TcpLatePlacesTest, ReadEndsWhenItsQpIsReset) {
  BeginRead();
  ConnectAgain();
  ExpectReadEnds();
}

}  // namespace tcp_late_places_test
}  // namespace verbena::internal::soft
