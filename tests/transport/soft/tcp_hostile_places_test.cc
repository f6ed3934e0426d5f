// A peer that stops in the middle of a large payload, while its bytes are received at their place:
// once the key or the queue pair is withdrawn no byte lands any more, earlier requests are executed
// first, nobody else waits, and a connection that ends there leaves nothing behind.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_chunks.h"
#include "tests/transport/soft/raw_tcp_peer.h"
#include "tests/transport/soft/two_processes.h"
#include "tests/transport/soft/window.h"

namespace verbena::internal::soft {
namespace tcp_hostile_places_test {

constexpr size_t kHalf = 2 << 20;
constexpr uint32_t kFirstBytes = RawWrite::kFirstBytes;
constexpr uint32_t kWriteBytes = RawWrite::kBytes;
constexpr size_t kUpToSecond = RawWrite::kUpToSecondLine;

SoftDeviceOptions Tcp() {
  return {.name = "tcp0", .shared_memory = false, .tcp = TcpWireOptions{.address = "127.0.0.1"}};
}

// Flags that the two fragments of a WRITE have besides.
struct MoreFlags {
  uint8_t first = 0;
  uint8_t second = 0;
};

class TcpHostilePlacesTest : public testing::Test {
 protected:
  void SetUp() override {
    Connect(*others_, *bystander_);
    ExpectOthersUnharmed();
  }

  void ExpectOthersUnharmed() {
    ASSERT_EQ(bystander_->PostReceive(1, bystander_->ReceiveSge(0, 64)), 0);
    ASSERT_EQ(others_->SendText(2, "unharmed"), 0);
    EXPECT_EQ(AwaitInTime(bystander_->cq()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(AwaitInTime(others_->cq()).status, IBV_WC_SUCCESS);
  }

  std::vector<std::byte> WriteOf(std::byte fill, uint32_t rkey, uint16_t psn, size_t offset = 0,
                                 MoreFlags more = {}) {
    return ChunkOf(RawWrite{.fill = fill,
                            .address = reinterpret_cast<uint64_t>(target() + offset),
                            .rkey = rkey,
                            .qpn = victim_->qp()->qp_num,
                            .psn = psn,
                            .first_flags = more.first,
                            .last_flags = static_cast<uint8_t>(kWatched | more.second)});
  }
  std::vector<std::byte> ReadOf(uint32_t bytes, uint16_t psn = 0) {
    return ReadChunkOf({.address = reinterpret_cast<uint64_t>(target()),
                        .length = bytes,
                        .rkey = victim_->mr()->rkey},
                       victim_->qp()->qp_num, psn);
  }

  std::byte* target() { return victim_->receive_buffer(); }
  uint64_t placed() { return device_->copied_bytes().placed_bytes; }
  // Bytes of WRITEs and READs, whatever way they took. The test may look at those that are counted.
  uint64_t moved() {
    const CopiedBytes copied = device_->copied_bytes();
    return copied.ring_bytes + copied.placed_bytes + copied.sent_bytes;
  }
  // Polls, which completes nothing, until `condition` holds.
  template <typename Condition>
  void PollUntil(Condition condition) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    ibv_wc wc;
    while (!condition()) {
      ASSERT_EQ(ibv_poll_cq(victim_->cq(), 1, &wc), 0);
      ASSERT_LT(std::chrono::steady_clock::now(), late);
    }
  }
  // Polls until the device has received `bytes` at their place.
  void AwaitPlaced(uint64_t bytes) {
    PollUntil([&] { return placed() >= bytes; });
    ASSERT_EQ(placed(), bytes);
  }
  void Bind(Window& window) {
    ASSERT_EQ(window.PostBind(7, kWriteBytes), 0);
    ASSERT_EQ(AwaitInTime(victim_->cq()).status, IBV_WC_SUCCESS);
  }
  void Invalidate(uint32_t rkey) {
    ASSERT_EQ(PostInvalidate(victim_->qp(), 8, rkey), 0);
    const ibv_wc wc = AwaitInTime(victim_->cq());
    EXPECT_EQ(wc.wr_id, 8u);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  bool TargetIs(std::byte fill, size_t from, size_t to) {
    return std::all_of(target() + from, target() + to,
                       [&](std::byte byte) { return byte == fill; });
  }

  // Sends a WRITE up to 1000 bytes behind the first line of its second fragment, which are placed.
  std::vector<std::byte> StopInTheSecondFragment(RawSocket& lanes, uint32_t rkey) {
    const std::vector<std::byte> chunk = WriteOf(std::byte{0x77}, rkey, 0);
    EXPECT_TRUE(lanes.Send(std::span(chunk).first(kUpToSecond + kPart)));
    AwaitPlaced(kPart);
    EXPECT_TRUE(TargetIs(std::byte{0x77}, 0, kFirstBytes));
    EXPECT_TRUE(TargetIs(std::byte{0x77}, kFirstBytes + 48, kFirstBytes + 48 + kPart));
    return {chunk.begin() + kUpToSecond + kPart, chunk.end()};
  }

  static constexpr size_t kPart = 1000;
  std::unique_ptr<SoftDevice> device_ = SoftDevice::Create(Tcp()).value();
  std::unique_ptr<SoftDevice> other_ = SoftDevice::Create(Tcp()).value();
  std::unique_ptr<QpEnd> victim_ =
      std::make_unique<QpEnd>(*device_, QpEndOptions{.bytes = 2 * kHalf, .access = kAccess});
  std::unique_ptr<QpEnd> others_ = std::make_unique<QpEnd>(*device_, QpEndOptions{});
  std::unique_ptr<QpEnd> bystander_ = std::make_unique<QpEnd>(*other_, QpEndOptions{});
};

TEST_F(TcpHostilePlacesTest, RestOfAPlacedFragmentArrivesWhenItsPeerGoesOn) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  const std::vector<std::byte> rest = StopInTheSecondFragment(lanes, victim_->mr()->rkey);
  ExpectOthersUnharmed();
  // In pieces: each is placed when it comes, but for what is too little.
  ASSERT_TRUE(lanes.Send(std::span(rest).first(4000)));
  AwaitPlaced(kPart + 4000);
  ASSERT_TRUE(lanes.Send(std::span(rest).subspan(4000)));
  PollUntil([&] { return moved() == kWriteBytes; });
  EXPECT_TRUE(TargetIs(std::byte{0x77}, 0, kWriteBytes));
  EXPECT_TRUE(TargetIs(std::byte{0}, kWriteBytes, kWriteBytes + 4096));
}

TEST_F(TcpHostilePlacesTest, NoByteLandsOnceTheRegionIsDeregistered) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  const std::vector<std::byte> rest = StopInTheSecondFragment(lanes, victim_->mr()->rkey);
  victim_->mr_handle().Reset();
  std::memset(target(), 0, kWriteBytes);
  ASSERT_TRUE(lanes.Send(rest));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kAccess);
  EXPECT_TRUE(TargetIs(std::byte{0}, 0, kWriteBytes));
  ExpectOthersUnharmed();
}

TEST_F(TcpHostilePlacesTest, NoByteLandsOnceTheWindowIsInvalidated) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  Window window(*victim_);
  Bind(window);
  const std::vector<std::byte> rest = StopInTheSecondFragment(lanes, window.rkey());
  Invalidate(window.rkey());
  std::memset(target(), 0, kWriteBytes);
  ASSERT_TRUE(lanes.Send(rest));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kAccess);
  EXPECT_TRUE(TargetIs(std::byte{0}, 0, kWriteBytes));
}

// A key that is there again by then allows new WRITEs, but not the one that it was withdrawn from.
TEST_F(TcpHostilePlacesTest, FragmentWhoseKeyWasWithdrawnMeanwhileIsRefused) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  Window window(*victim_);
  Bind(window);
  const uint32_t key = window.rkey();
  const std::vector<std::byte> rest = StopInTheSecondFragment(lanes, key);
  Invalidate(key);
  const uint64_t before = placed();
  ASSERT_TRUE(lanes.Send(std::span(rest).first(rest.size() - 100)));
  // Until the device has received them: the engine sees to that, too.
  PollUntil([&] { return lanes.Unread() == 0; });
  ibv_wc wc;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(ibv_poll_cq(victim_->cq(), 1, &wc), 0);
  EXPECT_EQ(placed(), before);
  Bind(window);
  while (window.rkey() != key && !HasFailure()) {
    Invalidate(window.rkey());
    Bind(window);
  }
  ASSERT_TRUE(lanes.Send(std::span(rest).last(100)));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kAccess);
}

TEST_F(TcpHostilePlacesTest, NoByteLandsOnceTheQpIsDestroyed) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  const std::vector<std::byte> rest = StopInTheSecondFragment(lanes, victim_->mr()->rkey);
  victim_->qp_handle().Reset();
  std::memset(target(), 0, kWriteBytes);
  ASSERT_TRUE(lanes.Send(rest));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kUnreachable);
  EXPECT_TRUE(TargetIs(std::byte{0}, 0, kWriteBytes));
  ExpectOthersUnharmed();
}

TEST_F(TcpHostilePlacesTest, ConnectionThatEndsThereLeavesNothingBehind) {
  for (uint16_t lid = 1; lid < 4; ++lid) {
    auto end = std::make_unique<QpEnd>(*device_, victim_->options());
    std::swap(end, victim_);
    RawTcpPeer peer(*device_, lid);
    RawSocket lanes = peer.ConnectLanes(*victim_);
    const std::vector<std::byte> chunk = WriteOf(std::byte{0x77}, victim_->mr()->rkey, 0);
    const uint64_t before = placed();
    ASSERT_TRUE(lanes.Send(std::span(chunk).first(kUpToSecond + kPart)));
    AwaitPlaced(before + kPart);
    lanes.Close();
    ASSERT_EQ(victim_->PostSend(8, victim_->SendSge(0, 8)), 0);
    EXPECT_EQ(AwaitInTime(victim_->cq()).status, IBV_WC_RETRY_EXC_ERR);
    // And the memory with it.
    victim_ = std::move(end);
    ExpectOthersUnharmed();
  }
}

TEST_F(TcpHostilePlacesTest, ForgedPlacesAreRefused) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  // So that large fragments are expected.
  ASSERT_TRUE(lanes.Send(WriteOf(std::byte{0x11}, victim_->mr()->rkey, 0)));
  // A later sequence number, beyond the region, and a foreign queue pair.
  ASSERT_TRUE(lanes.Send(WriteOf(std::byte{0x77}, victim_->mr()->rkey, 9)));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kSequence);
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kSequence);
  EXPECT_TRUE(TargetIs(std::byte{0x11}, 0, kWriteBytes));
  const uint64_t before = placed();
  ASSERT_TRUE(lanes.Send(WriteOf(std::byte{0x77}, victim_->mr()->rkey, 2, kHalf - 4096)));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kAccess);
  EXPECT_TRUE(TargetIs(std::byte{0}, kHalf - 4096, kHalf));
  EXPECT_EQ(placed(), before);
  ExpectOthersUnharmed();
}

// A last fragment with immediate data would report a receive that no first one has taken, and one
// without them would keep a receive for ever.
TEST_F(TcpHostilePlacesTest, FragmentThatDeniesItsImmediateDataIsRefused) {
  uint16_t lid = 1;
  for (const MoreFlags flags : {MoreFlags{.second = kImmediate}, MoreFlags{.first = kImmediate}}) {
    victim_ = std::make_unique<QpEnd>(*device_, victim_->options());
    RawTcpPeer peer(*device_, lid++);
    RawSocket lanes = peer.ConnectLanes(*victim_);
    ASSERT_EQ(victim_->PostReceive(5, victim_->ReceiveSge(0, 64)), 0);
    ASSERT_TRUE(lanes.Send(WriteOf(std::byte{0x77}, victim_->mr()->rkey, 0, 0, flags)));
    const ibv_wc wc = AwaitInTime(victim_->cq());
    ASSERT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, 5u);
    EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kInvalidRequest);
    EXPECT_TRUE(TargetIs(std::byte{0}, kFirstBytes, kWriteBytes));
    ExpectOthersUnharmed();
  }
}

// The data of a READ in two fragments of the largest size, in a chunk of its own.
std::vector<std::byte> DataOf(std::byte fill, uint32_t qpn) {
  const std::vector<std::byte> payload(kMaxFragmentBytes, fill);
  const uint32_t each = LinesOf(kMaxFragmentBytes);
  const auto head = Encode(TcpChunk{.answer_lines = 2 * each, .consumed = 1});
  std::vector<std::byte> bytes(head.begin(), head.end());
  for (const uint8_t flags : {uint8_t{0}, uint8_t{kLast}}) {
    const std::vector<RingLine> lines = MessageOf(
        {.opcode = Opcode::kData, .flags = flags, .destination = qpn, .source = RawTcpPeer::kQpn},
        payload);
    const auto raw = std::as_bytes(std::span(lines));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
  return bytes;
}

TEST_F(TcpHostilePlacesTest, NoDataLandOnceTheReadersMemoryIsDeregistered) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  ASSERT_EQ(victim_->PostOneSided(IBV_WR_RDMA_READ, 8,
                                  victim_->ReceiveSge(0, 2 * kMaxFragmentBytes), 4096, 77),
            0);
  std::array<std::byte, TcpChunk::kBytes + kLineBytes> request;
  ASSERT_TRUE(lanes.Receive(request));
  const std::vector<std::byte> chunk = DataOf(std::byte{0x77}, victim_->qp()->qp_num);
  ASSERT_TRUE(lanes.Send(std::span(chunk).first(kUpToSecond + kPart)));
  AwaitPlaced(kPart);
  EXPECT_TRUE(TargetIs(std::byte{0x77}, 0, kMaxFragmentBytes));
  EXPECT_TRUE(TargetIs(std::byte{0x77}, kMaxFragmentBytes + 48, kMaxFragmentBytes + 48 + kPart));
  ExpectOthersUnharmed();
  victim_->mr_handle().Reset();
  std::memset(target(), 0, 2 * kMaxFragmentBytes);
  ASSERT_TRUE(lanes.Send(std::span(chunk).subspan(kUpToSecond + kPart)));
  const ibv_wc wc = AwaitInTime(victim_->cq());
  EXPECT_EQ(wc.wr_id, 8u);
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_TRUE(TargetIs(std::byte{0}, 0, 2 * kMaxFragmentBytes));
}

// A peer that leaves no room for the rest of a READ reads nothing of it later.
TEST_F(TcpHostilePlacesTest, NoMemoryIsReadOnceTheQpIsDestroyed) {
  constexpr uint32_t kRead = 1 << 20;
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  ASSERT_TRUE(lanes.Send(ReadOf(kRead)));
  const uint32_t each = LinesOf(kMaxFragmentBytes);
  const uint64_t full = (LaneGeometry{}.answer_lines - 1) / each * each;
  uint64_t taken = 0;
  while (taken < full && !HasFailure()) {
    taken = HearChunk(lanes).PositionAfter(taken);
  }
  victim_->qp_handle().Reset();
  std::memset(target(), 0x77, kRead);
  ASSERT_TRUE(lanes.Send(ChunkOf({.answers_consumed = taken}, {})));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kUnreachable);
}

// The data of a READ that waits for room are read before a later WRITE's bytes land.
TEST_F(TcpHostilePlacesTest, EarlierReadIsExecutedBeforeBytesArePlaced) {
  constexpr uint32_t kRead = 1 << 20;
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  ASSERT_TRUE(lanes.Send(WriteOf(std::byte{0x11}, victim_->mr()->rkey, 0)));
  ASSERT_TRUE(lanes.Send(ReadOf(kRead, 2)));
  // Over the end of what is read.
  const size_t offset = kRead - kWriteBytes;
  const std::vector<std::byte> write = WriteOf(std::byte{0x77}, victim_->mr()->rkey, 3, offset);
  ASSERT_TRUE(lanes.Send(write));
  uint64_t taken = 0;
  uint32_t bytes = 0;
  while (bytes < kRead && !HasFailure()) {
    const HeardChunk heard = HearChunk(lanes);
    EXPECT_EQ(std::count(heard.lines.begin(), heard.lines.end(), std::byte{0x77}), 0);
    bytes += heard.chunk.answer_lines / LinesOf(kMaxFragmentBytes) * uint32_t{kMaxFragmentBytes};
    taken = heard.PositionAfter(taken);
    if (heard.chunk.answer_lines == 0) continue;
    ASSERT_TRUE(lanes.Send(ChunkOf({.answers_consumed = taken}, {})));
  }
  PollUntil([&] { return moved() == kRead + 2 * kWriteBytes; });
  EXPECT_TRUE(TargetIs(std::byte{0x77}, offset, kRead));
}

}  // namespace tcp_hostile_places_test
}  // namespace verbena::internal::soft
