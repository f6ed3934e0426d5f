// Large payloads of WRITEs and READs cross a TCP connection without passing through the rings:
// they are sent from their memory and received at their place, whatever their size, alignment and
// scatter list, with small messages of other queue pairs between. What is refused leaves no byte.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/exchanges.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"

namespace verbena::internal::soft {
namespace tcp_places_test {

constexpr size_t kHalf = 4 << 20;

SoftDeviceOptions Tcp() {
  return {.name = "tcp0", .shared_memory = false, .tcp = TcpWireOptions{.address = "127.0.0.1"}};
}

uint64_t AddressOf(const std::byte* memory) { return reinterpret_cast<uint64_t>(memory); }

// A one-sided operation of `end` with a scatter list, signalled.
int Post(QpEnd& end, ibv_wr_opcode opcode, std::vector<ibv_sge> sges, uint64_t address,
         uint32_t rkey) {
  ibv_send_wr wr{};
  wr.wr_id = 1;
  wr.sg_list = sges.data();
  wr.num_sge = static_cast<int>(sges.size());
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.qp(), &wr, &bad);
}

// Two devices of this process, and on each of them a QP for payloads and one for small messages,
// which share a connection.
class TcpPlacesTest : public testing::Test {
 protected:
  void SetUp() override {
    Connect(a_->endpoint, b_->endpoint);
    ConnectQps(a_->endpoint, small_a_.get(), b_->endpoint, small_b_.get());
    // Until the connection stands.
    ASSERT_EQ(Write(0, 8), IBV_WC_SUCCESS);
    before_a_ = CopiedBy(*a_);
    before_b_ = CopiedBy(*b_);
  }

  QpEnd& a() { return a_->endpoint; }
  QpEnd& b() { return b_->endpoint; }
  CopiedBytes copied_by_a() { return CopiedBy(*a_) - before_a_; }
  CopiedBytes copied_by_b() { return CopiedBy(*b_) - before_b_; }
  // Bytes are sent first, and counted then, under the lock of the CQ: a poll waits until an engine
  // is done with its turn.
  CopiedBytes CopiedBy(Process& side) {
    PollBoth();
    return side.device->copied_bytes();
  }

  // Polls both sides. Takes note of the end of the payload's operation, and of small messages.
  void PollBoth() {
    ibv_wc wc;
    while (ibv_poll_cq(b().cq(), 1, &wc) == 1) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_RECV && wc.wr_id >= kFirstSlot) CheckSmall(wc.wr_id);
    }
    while (ibv_poll_cq(a().cq(), 1, &wc) == 1) {
      if (wc.wr_id == 1) ended_ = wc.status;
    }
  }
  // Polls both sides until `condition` holds.
  template <typename Condition>
  void PollUntil(Condition condition) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      PollBoth();
      ASSERT_LT(std::chrono::steady_clock::now(), late);
    }
  }
  ibv_wc_status Await() {
    PollUntil([this] { return ended_.has_value(); });
    return std::exchange(ended_, std::nullopt).value_or(IBV_WC_GENERAL_ERR);
  }
  ibv_wc_status Write(size_t offset, uint32_t bytes) {
    EXPECT_EQ(Post(a(), IBV_WR_RDMA_WRITE, {a().SendSge(offset, bytes)},
                   AddressOf(b().receive_buffer() + offset), b().mr()->rkey),
              0);
    return Await();
  }

  // A small message from the other QP.
  void SendSmall() {
    PollUntil([this] { return small_sent_ - small_received_ < kSlots; });
    const size_t slot = small_sent_++ % kSlots;
    ibv_sge sge = b().ReceiveSge(kHalf - 4096 + slot * 64, 64);
    ibv_recv_wr receive{.wr_id = kFirstSlot + slot, .next = nullptr, .sg_list = &sge, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(small_b_.get(), &receive, &bad), 0);
    std::byte* const text = a().send_buffer() + kHalf - 4096 + slot * 64;
    std::memset(text, static_cast<int>(small_sent_), 40);
    ASSERT_EQ(a().PostSend(2, a().SendSge(kHalf - 4096 + slot * 64, 40), IBV_SEND_SIGNALED,
                           small_a_.get()),
              0);
  }
  void CheckSmall(uint64_t id) {
    ++small_received_;
    const std::byte* text = b().receive_buffer() + kHalf - 4096 + (id - kFirstSlot) * 64;
    for (int i = 0; i < 40; ++i) ASSERT_EQ(text[i], std::byte(small_received_));
  }

  // Small messages that are on their way at once.
  static constexpr size_t kSlots = 8;
  static constexpr uint64_t kFirstSlot = 100;
  const QpEndOptions options_{.max_sge = 8, .bytes = 2 * kHalf};
  std::unique_ptr<Process> a_ = std::make_unique<Process>(options_, Tcp());
  std::unique_ptr<Process> b_ = std::make_unique<Process>(options_, Tcp());
  QpHandle small_a_ = a_->endpoint.AddQp();
  QpHandle small_b_ = b_->endpoint.AddQp();
  CopiedBytes before_a_;
  CopiedBytes before_b_;
  uint32_t small_sent_ = 0;
  uint32_t small_received_ = 0;
  std::optional<ibv_wc_status> ended_;
};

// Sizes around those of lines, fragments, and parts that are worth a place.
constexpr uint32_t kSizes[] = {1,      47,     48,     49,      2047,      2048,     2049,
                               4096,   16359,  16360,  16361,   16384,     16385,    20'000,
                               32'744, 65'537, 99'999, 262'144, 1'048'579, 2'500'001};

// Bytes that tell their offset, and the round.
std::byte PatternAt(size_t offset, uint32_t round) {
  return static_cast<std::byte>(offset * 7 + offset / 251 + round * 13);
}

// Cuts [memory, memory + bytes) into `count` parts of odd sizes.
std::vector<ibv_sge> Cut(const std::byte* memory, uint32_t bytes, uint32_t count, uint32_t lkey) {
  std::vector<ibv_sge> sges;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t part = i + 1 == count ? bytes : std::min(bytes, bytes / 3 + i % 2);
    sges.push_back({.addr = AddressOf(memory), .length = part, .lkey = lkey});
    memory += part;
    bytes -= part;
  }
  return sges;
}

TEST_F(TcpPlacesTest, BytesOfAllSizesArriveAmongSmallMessagesOfOthers) {
  constexpr size_t kGuard = 64;
  uint32_t round = 0;
  uint64_t written = 0;
  uint64_t read = 0;
  for (const uint32_t bytes : kSizes) {
    for (const uint32_t sges : {1u, 2u, 5u}) {
      ++round;
      const size_t offset = kGuard + round * 37 % 67;
      std::byte* const ours = a().send_buffer() + offset;
      std::byte* const theirs = b().receive_buffer() + offset + round % 5;
      std::memset(theirs - kGuard, 0xee, bytes + 2 * kGuard);
      for (size_t i = 0; i < bytes; ++i) ours[i] = PatternAt(i, round);
      SendSmall();
      ASSERT_EQ(Post(a(), IBV_WR_RDMA_WRITE, Cut(ours, bytes, sges, a().mr()->lkey),
                     AddressOf(theirs), b().mr()->rkey),
                0);
      SendSmall();
      ASSERT_EQ(Await(), IBV_WC_SUCCESS) << bytes;
      ASSERT_EQ(std::memcmp(ours, theirs, bytes), 0) << bytes << " written in " << sges;
      for (size_t i = 0; i < kGuard; ++i) {
        ASSERT_EQ(theirs[bytes + i], std::byte{0xee}) << bytes;
        ASSERT_EQ(theirs[-1 - static_cast<std::ptrdiff_t>(i)], std::byte{0xee}) << bytes;
      }
      written += bytes;

      std::byte* const back = a().receive_buffer() + offset;
      std::memset(back - kGuard, 0xdd, bytes + 2 * kGuard);
      SendSmall();
      ASSERT_EQ(Post(a(), IBV_WR_RDMA_READ, Cut(back, bytes, sges, a().mr()->lkey),
                     AddressOf(theirs), b().mr()->rkey),
                0);
      SendSmall();
      ASSERT_EQ(Await(), IBV_WC_SUCCESS) << bytes;
      ASSERT_EQ(std::memcmp(back, ours, bytes), 0) << bytes << " read in " << sges;
      for (size_t i = 0; i < kGuard; ++i) {
        ASSERT_EQ(back[bytes + i], std::byte{0xdd}) << bytes;
        ASSERT_EQ(back[-1 - static_cast<std::ptrdiff_t>(i)], std::byte{0xdd}) << bytes;
      }
      read += bytes;
    }
  }
  // Each device counts a byte once, whatever its way is.
  for (const CopiedBytes& copied : {copied_by_a(), copied_by_b()}) {
    EXPECT_EQ(copied.sent_bytes + copied.placed_bytes + copied.ring_bytes, written + read);
    EXPECT_GT(copied.sent_bytes, 0u);
    EXPECT_GT(copied.placed_bytes, 0u);
  }
}

TEST_F(TcpPlacesTest, LargePayloadsPassThroughNoRing) {
  constexpr uint32_t kBytes = 3 << 20;
  ASSERT_EQ(Write(0, kBytes), IBV_WC_SUCCESS);
  CopiedBytes sender = copied_by_a();
  CopiedBytes receiver = copied_by_b();
  EXPECT_EQ(sender.sent_bytes + sender.ring_bytes, kBytes);
  EXPECT_EQ(receiver.placed_bytes + receiver.ring_bytes, kBytes);
  // The first fragment arrives before anybody expects a large one, and a socket may be full.
  EXPECT_LT(sender.ring_bytes, kBytes / 4);
  EXPECT_LT(receiver.ring_bytes, kBytes / 4);
  ASSERT_EQ(Post(a(), IBV_WR_RDMA_READ, {a().ReceiveSge(0, kBytes)}, AddressOf(b().send_buffer()),
                 b().mr()->rkey),
            0);
  ASSERT_EQ(Await(), IBV_WC_SUCCESS);
  sender = copied_by_b();
  receiver = copied_by_a();
  EXPECT_LT(sender.ring_bytes, kBytes / 2);
  EXPECT_LT(receiver.ring_bytes, kBytes / 2);
  EXPECT_EQ(sender.sent_bytes + sender.placed_bytes + sender.ring_bytes, 2 * kBytes);
  EXPECT_EQ(receiver.sent_bytes + receiver.placed_bytes + receiver.ring_bytes, 2 * kBytes);
}

TEST_F(TcpPlacesTest, WriteByAWrongKeyLeavesNoByteAndOthersGoOn) {
  constexpr uint32_t kBytes = 1 << 20;
  std::memset(a().send_buffer(), 0x77, kBytes);
  ASSERT_EQ(Post(a(), IBV_WR_RDMA_WRITE, {a().SendSge(0, kBytes)}, AddressOf(b().receive_buffer()),
                 b().mr()->rkey ^ 1),
            0);
  EXPECT_EQ(Await(), IBV_WC_REM_ACCESS_ERR);
  const auto touched = [](std::byte byte) { return byte != std::byte{0}; };
  EXPECT_TRUE(std::none_of(b().receive_buffer(), b().receive_buffer() + kBytes, touched));
  SendSmall();
  PollUntil([this] { return small_received_ == 1; });
  EXPECT_EQ(small_received_, 1u);
}

// The target refuses it until a receive is there, and the initiator sends it again from its memory.
TEST_F(TcpPlacesTest, WriteWithImmediateLeavesNoByteBeforeItHasAReceive) {
  constexpr uint32_t kBytes = 200'000;
  std::memset(a().send_buffer(), 0x55, kBytes);
  ASSERT_EQ(Post(a(), IBV_WR_RDMA_WRITE_WITH_IMM, {a().SendSge(0, kBytes)},
                 AddressOf(b().receive_buffer()), b().mr()->rkey),
            0);
  ibv_wc wc;
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto launched = [this] {
    const CopiedBytes copied = a_->device->copied_bytes() - before_a_;
    return copied.sent_bytes + copied.ring_bytes;
  };
  while (launched() < 3 * kBytes && std::chrono::steady_clock::now() < late) {
    ASSERT_EQ(ibv_poll_cq(a().cq(), 1, &wc), 0);
    ASSERT_EQ(ibv_poll_cq(b().cq(), 1, &wc), 0);
  }
  ASSERT_GE(launched(), 3 * kBytes);
  const auto touched = [](std::byte byte) { return byte != std::byte{0}; };
  EXPECT_TRUE(std::none_of(b().receive_buffer(), b().receive_buffer() + kBytes, touched));
  ASSERT_EQ(b().PostReceive(9, b().ReceiveSge(kHalf - 64, 64)), 0);
  EXPECT_EQ(Await(), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(b().receive_buffer(), a().send_buffer(), kBytes), 0);
}

// Two devices without engines: nobody drives the target until a WRITE is awaited.
class UndrivenPair {
 public:
  UndrivenPair(SoftDeviceOptions wire, uint32_t bytes) {
    wire.engine_thread = false;
    device_a_ = SoftDevice::Create(wire).value();
    device_b_ = SoftDevice::Create(wire).value();
    const QpEndOptions options{.bytes = 2 * size_t{bytes}};
    a_ = std::make_unique<QpEnd>(*device_a_, options);
    b_ = std::make_unique<QpEnd>(*device_b_, options);
    Connect(*a_, *b_);
    // Until the connection stands.
    EXPECT_EQ(Write(8), 0);
    EXPECT_EQ(Await(), IBV_WC_SUCCESS);
  }

  QpEnd& a() { return *a_; }
  QpEnd& b() { return *b_; }
  CopiedBytes copied_by_a() { return device_a_->copied_bytes(); }
  int Write(uint32_t bytes) {
    return a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, bytes),
                            AddressOf(b_->receive_buffer()), b_->mr()->rkey);
  }
  ibv_wc_status Await() {
    ibv_wc wc{};
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (ibv_poll_cq(a_->cq(), 1, &wc) == 0 && std::chrono::steady_clock::now() < late) {
      ibv_wc none;
      EXPECT_EQ(ibv_poll_cq(b_->cq(), 1, &none), 0);
      device_a_->Step();
      device_b_->Step();
    }
    return wc.status;
  }

 private:
  std::unique_ptr<SoftDevice> device_a_;
  std::unique_ptr<SoftDevice> device_b_;
  std::unique_ptr<QpEnd> a_;
  std::unique_ptr<QpEnd> b_;
};

// The payloads fill the sockets, and then the ring.
TEST(TcpLoansTest, BytesThatAFullSocketDoesNotTakeArriveToo) {
  constexpr uint32_t kBytes = 14 << 20;
  SoftDeviceOptions wire = Tcp();
  wire.request_ring_bytes = 16 << 20;
  UndrivenPair pair(wire, kBytes);
  for (size_t i = 0; i < kBytes; ++i) pair.a().send_buffer()[i] = PatternAt(i, 3);
  const CopiedBytes before = pair.copied_by_a();
  ASSERT_EQ(pair.Write(kBytes), 0);
  const CopiedBytes sent = pair.copied_by_a() - before;
  EXPECT_GT(sent.sent_bytes, 0u);
  EXPECT_GT(sent.ring_bytes, 0u);
  EXPECT_EQ(sent.sent_bytes + sent.ring_bytes, kBytes);
  ASSERT_EQ(pair.Await(), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(pair.a().send_buffer(), pair.b().receive_buffer(), kBytes), 0);
}

// The ring has no room for the rest, which is to be sent later.
TEST(TcpLoansTest, RestOfAWriteIsNotSentOnceItsMemoryIsDeregistered) {
  constexpr uint32_t kBytes = 32 << 20;
  UndrivenPair pair(Tcp(), kBytes);
  std::memset(pair.a().send_buffer(), 0x11, kBytes);
  ASSERT_EQ(pair.Write(kBytes), 0);
  pair.a().mr_handle().Reset();
  std::memset(pair.a().send_buffer(), 0x33, kBytes);
  EXPECT_EQ(pair.Await(), IBV_WC_LOC_PROT_ERR);
  const std::byte* const target = pair.b().receive_buffer();
  EXPECT_EQ(std::count(target, target + kBytes, std::byte{0x33}), 0);
  EXPECT_GT(std::count(target, target + kBytes, std::byte{0x11}), 0);
}

}  // namespace tcp_places_test
}  // namespace verbena::internal::soft
