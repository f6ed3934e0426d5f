// Each opcode moves its bytes and no others, consumes a receive only if it should, and completes
// rightly on both sides. Requests that the device cannot execute are refused.

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

class Opcodes : public ConformanceTest {};

TEST_P(Opcodes, SendArrivesWithItsBytesLengthAndQpn) {
  QpPair c = Connect();
  const std::string message = Pattern(1, 777);
  c.near.Put(100, message);
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 1024)}));
  c.near.Post(Send(1, {c.near.memory.Piece(100, 777)}));
  const ibv_wc sent = c.near.SendCompletion();
  EXPECT_THAT(sent, Succeeded(IBV_WC_SEND, 1));
  EXPECT_EQ(sent.qp_num, c.near.qp.number);
  const ibv_wc received = c.far.ReceiveCompletion();
  EXPECT_THAT(received, Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(received.qp_num, c.far.qp.number);
  EXPECT_EQ(received.byte_len, 777u);
  EXPECT_EQ(received.wc_flags & IBV_WC_WITH_IMM, 0u);
  Demand((received.wc_flags & IBV_WC_GRH) == 0, Departure::kGrhFlagOnReceive);
  EXPECT_EQ(c.far.Bytes(0, 777), message);
  EXPECT_EQ(c.far.Bytes(777, 247), std::string(247, '\0')) << "bytes behind the message changed";
}

TEST_P(Opcodes, SendWithImmediateDeliversBoth) {
  if (!capabilities().send_with_immediate) GTEST_SKIP() << "the device has no immediates";
  QpPair c = Connect();
  c.near.Put(0, Pattern(2, 64));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  c.near.Post(SendImmediate(1, {c.near.memory.Piece(0, 64)}, 0xcafe1234));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  const ibv_wc received = c.far.ReceiveCompletion();
  EXPECT_THAT(received, Succeeded(IBV_WC_RECV, 7));
  EXPECT_NE(received.wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_EQ(ntohl(received.imm_data), 0xcafe1234u);
  EXPECT_EQ(c.far.Bytes(0, 64), Pattern(2, 64));
}

TEST_P(Opcodes, WriteLandsAndConsumesNoReceive) {
  QpPair c = Connect();
  c.near.Put(0, Pattern(3, 3000));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  c.near.Post(Write(1, {c.near.memory.Piece(0, 3000)}, c.far.memory, 5001));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  // The receive is still there for a SEND behind the WRITE, whose arrival proves the data's.
  c.near.Post(Send(2, {c.near.memory.Piece(0, 8)}));
  const ibv_wc received = c.far.ReceiveCompletion();
  EXPECT_THAT(received, Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(received.byte_len, 8u);
  EXPECT_EQ(c.far.Bytes(5000, 3002),
            std::string(1, '\0') + Pattern(3, 3000) + std::string(1, '\0'));
  EXPECT_THAT(c.far.PollAll(), testing::IsEmpty());
}

TEST_P(Opcodes, WriteWithImmediateConsumesAReceiveAndLeavesItsBufferAlone) {
  if (!capabilities().write_with_immediate) GTEST_SKIP() << "the device has no immediates";
  QpPair c = Connect();
  c.near.Put(0, Pattern(4, 512));
  c.far.Put(0, Pattern(5, 64));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  c.near.Post(WriteImmediate(1, {c.near.memory.Piece(0, 512)}, c.far.memory, 4096, 99));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  const ibv_wc received = c.far.ReceiveCompletion();
  EXPECT_THAT(received, Succeeded(IBV_WC_RECV_RDMA_WITH_IMM, 7));
  EXPECT_NE(received.wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_EQ(ntohl(received.imm_data), 99u);
  EXPECT_EQ(received.byte_len, 512u) << "the length of the data written";
  EXPECT_EQ(c.far.Bytes(4096, 512), Pattern(4, 512));
  EXPECT_EQ(c.far.Bytes(0, 64), Pattern(5, 64)) << "the receive's buffer was written to";
}

TEST_P(Opcodes, ReadFetchesAndSaysHowMuch) {
  QpPair c = Connect();
  c.far.Put(123, Pattern(6, 5000));
  c.near.Post(Read(1, {c.near.memory.Piece(0, 5000)}, c.far.memory, 123));
  const ibv_wc wc = c.near.SendCompletion();
  EXPECT_THAT(wc, Succeeded(IBV_WC_RDMA_READ, 1));
  EXPECT_EQ(wc.byte_len, 5000u);
  EXPECT_EQ(c.near.Bytes(0, 5001), Pattern(6, 5000) + std::string(1, '\0'));
}

TEST_P(Opcodes, CompareAndSwapSwapsOnlyWhenEqualAndReturnsTheOldValue) {
  if (!capabilities().atomics) GTEST_SKIP() << "the device has no atomics";
  QpPair c = Connect();
  c.far.PutWord(512, 42);
  c.near.Post(CompareSwap(1, c.near.memory.Piece(0, 8), c.far.memory, 512, 41, 1000));
  const ibv_wc unequal = c.near.SendCompletion();
  EXPECT_THAT(unequal, Succeeded(IBV_WC_COMP_SWAP, 1));
  EXPECT_EQ(unequal.byte_len, 8u);
  EXPECT_EQ(c.near.Word(0), 42u);
  EXPECT_EQ(c.far.Word(512), 42u);
  c.near.Post(CompareSwap(2, c.near.memory.Piece(8, 8), c.far.memory, 512, 42, 1000));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_COMP_SWAP, 2));
  EXPECT_EQ(c.near.Word(8), 42u);
  EXPECT_EQ(c.far.Word(512), 1000u);
}

TEST_P(Opcodes, FetchAndAddAddsWrapsAroundAndReturnsTheOldValue) {
  if (!capabilities().atomics) GTEST_SKIP() << "the device has no atomics";
  QpPair c = Connect();
  c.far.PutWord(8, ~uint64_t{0} - 1);
  c.near.Post(FetchAdd(1, c.near.memory.Piece(0, 8), c.far.memory, 8, 5));
  const ibv_wc wc = c.near.SendCompletion();
  EXPECT_THAT(wc, Succeeded(IBV_WC_FETCH_ADD, 1));
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_EQ(c.near.Word(0), ~uint64_t{0} - 1);
  EXPECT_EQ(c.far.Word(8), 3u);
  EXPECT_EQ(c.far.Word(0), 0u) << "the neighbour changed";
  EXPECT_EQ(c.far.Word(16), 0u) << "the neighbour changed";
}

TEST_P(Opcodes, AnAtomicOnAnAddressThatIsNotAlignedIsRefused) {
  if (!capabilities().atomics) GTEST_SKIP() << "the device has no atomics";
  QpPair c = Connect();
  c.far.PutWord(8, 7);
  const PostResult posted =
      c.near.TryPost({FetchAdd(1, c.near.memory.Piece(0, 8), c.far.memory, 12, 1)});
  if (posted.error == 0) {
    EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_REM_INV_REQ_ERR, 1));
  }
  EXPECT_EQ(c.far.Word(8), 7u);
  EXPECT_EQ(c.far.Word(16), 0u);
}

TEST_P(Opcodes, ZeroLengthSendAndImmediateCarryNothingButTheirArrival) {
  QpPair c = Connect();
  const bool bare = c.far.TryPost({Receive(7, {})}).error == 0;
  if (!Demand(bare, Departure::kEmptyReceiveRefused)) {
    c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  }
  c.near.Post(Send(1, {}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  const ibv_wc received = c.far.ReceiveCompletion();
  EXPECT_THAT(received, Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(received.byte_len, 0u);
  if (!capabilities().write_with_immediate) return;
  c.far.Post(Receive(8, {c.far.memory.Piece(0, 64)}));
  c.near.Post(WriteImmediate(2, {}, c.far.memory, 0, 5));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 2));
  const ibv_wc immediate = c.far.ReceiveCompletion();
  EXPECT_THAT(immediate, Succeeded(IBV_WC_RECV_RDMA_WITH_IMM, 8));
  EXPECT_EQ(immediate.byte_len, 0u);
  EXPECT_EQ(ntohl(immediate.imm_data), 5u);
}

TEST_P(Opcodes, ZeroLengthWriteAndReadNeedNoKey) {
  QpPair c = Connect();
  // An access of no bytes needs neither a key nor an address that mean anything.
  Memory nowhere = c.far.memory;
  nowhere.rkey ^= 0x5a5a00;
  nowhere.address = 8;
  c.near.Post(Write(1, {}, nowhere, 0));
  c.near.Post(Read(2, {}, nowhere, 0));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 2));
}

TEST_P(Opcodes, SendGathersAndReceiveScattersInOrder) {
  QpPair c = Connect();
  const std::string message = Pattern(7, 600);
  c.near.Put(1001, message.substr(0, 1));
  c.near.Put(50, message.substr(1, 499));
  c.near.Put(4090, message.substr(500, 100));
  c.far.Post(Receive(7, {c.far.memory.Piece(3, 7), c.far.memory.Piece(8000, 400),
                         c.far.memory.Piece(100, 1), c.far.memory.Piece(2000, 1000)}));
  c.near.Post(Send(1, {c.near.memory.Piece(1001, 1), c.near.memory.Piece(50, 499),
                       c.near.memory.Piece(4090, 100)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  const ibv_wc received = c.far.ReceiveCompletion();
  EXPECT_THAT(received, Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(received.byte_len, 600u);
  EXPECT_EQ(
      c.far.Bytes(3, 7) + c.far.Bytes(8000, 400) + c.far.Bytes(100, 1) + c.far.Bytes(2000, 192),
      message);
  EXPECT_EQ(c.far.Bytes(2192, 1), std::string(1, '\0'));
}

TEST_P(Opcodes, WriteGathersAndReadScattersInOrder) {
  QpPair c = Connect();
  const std::string data = Pattern(8, 9000);
  c.near.Put(20000, data.substr(0, 4097));
  c.near.Put(11, data.substr(4097, 3));
  c.near.Put(30000, data.substr(4100, 4900));
  c.near.Post(Write(1,
                    {c.near.memory.Piece(20000, 4097), c.near.memory.Piece(11, 3),
                     c.near.memory.Piece(30000, 4900)},
                    c.far.memory, 77));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  EXPECT_TRUE(c.far.Written(77, data) == data);
  const PostResult read = c.near.TryPost({Read(
      2, {c.near.memory.Piece(40001, 2), c.near.memory.Piece(50000, 8998)}, c.far.memory, 77)});
  const bool pieces = near_info().attributes.max_sge_rd >= 2;
  if (!pieces && !Demand(read.error != 0, Departure::kReadPiecesDropped)) return;
  EXPECT_EQ(read.error == 0, pieces);
  if (!pieces) return;
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 2));
  EXPECT_TRUE(c.near.Bytes(40001, 2) + c.near.Bytes(50000, 8998) == data);
}

TEST_P(Opcodes, AsManyPiecesAsTheQueueHasAreTakenAndOneMoreIsRefused) {
  EndOptions options;
  const uint32_t most =
      std::min<uint32_t>(kMaxSges - 1, static_cast<uint32_t>(near_info().attributes.max_sge));
  options.cap.max_send_sge = most;
  options.cap.max_recv_sge = most;
  QpPair c = Connect(options);
  c.near.Put(0, Pattern(9, 64 * most));
  SendWr send = Send(1, {});
  RecvWr receive = Receive(7, {});
  send.sge_count = receive.sge_count = most;
  for (uint32_t i = 0; i < most; ++i) {
    send.sges[i] = c.near.memory.Piece(i * 64, 64);
    receive.sges[i] = c.far.memory.Piece(i * 64, 64);
  }
  c.far.Post(receive);
  c.near.Post(send);
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(c.far.Bytes(0, 64 * most), Pattern(9, 64 * most));

  send.sge_count = c.near.qp.cap.max_send_sge + 1;
  receive.sge_count = c.far.qp.cap.max_recv_sge + 1;
  if (std::max(send.sge_count, receive.sge_count) > kMaxSges) return;
  const PostResult sends = c.near.TryPost({send});
  EXPECT_NE(sends.error, 0) << "more send SGEs than the queue has were accepted";
  EXPECT_EQ(sends.accepted, 0u);
  const PostResult receives = c.far.TryPost({receive});
  EXPECT_NE(receives.error, 0) << "more receive SGEs than the queue has were accepted";
  EXPECT_EQ(receives.accepted, 0u);
}

// A failure names the size, and the part of the implementation that the size probes.
TEST_P(Opcodes, EverySizeRoundAnImplementationsEdgesArrivesWhole) {
  EndOptions options;
  options.memory_bytes = 4 << 20;
  QpPair c = Connect(options);
  const uint64_t half = options.memory_bytes / 2;
  for (uint64_t bytes :
       {1ul,     7ul,     8ul,     47ul,    48ul,     49ul,     63ul,     64ul,     65ul,
        255ul,   1023ul,  1024ul,  1025ul,  4095ul,   4096ul,   4097ul,   16383ul,  16384ul,
        16385ul, 65535ul, 65536ul, 65537ul, 131072ul, 262143ul, 262144ul, 262145ul, 1000003ul}) {
    SCOPED_TRACE(bytes);
    const std::string data = Pattern(static_cast<uint32_t>(bytes), bytes);
    c.near.Put(0, data);
    c.far.Post(Receive(7, {c.far.memory.Piece(0, bytes)}));
    c.near.Post(Send(1, {c.near.memory.Piece(0, bytes)}));
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
    const ibv_wc received = c.far.ReceiveCompletion();
    ASSERT_THAT(received, Succeeded(IBV_WC_RECV, 7));
    ASSERT_EQ(received.byte_len, bytes);
    c.near.Post(Write(2, {c.near.memory.Piece(0, bytes)}, c.far.memory, half + 1));
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 2));
    c.near.Post(Read(3, {c.near.memory.Piece(half, bytes)}, c.far.memory, half + 1));
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 3));
    ASSERT_TRUE(c.far.Bytes(0, bytes) == data) << "SEND";
    ASSERT_TRUE(c.far.Bytes(half + 1, bytes) == data) << "WRITE";
    ASSERT_TRUE(c.near.Bytes(half, bytes) == data) << "READ";
  }
}

TEST_P(Opcodes, LargeTransfersArriveWhole) {
  const uint64_t bytes = std::min<uint64_t>(8 << 20, near_info().port.max_msg_sz);
  EndOptions options;
  options.memory_bytes = bytes + 4096;
  QpPair c = Connect(options);
  const std::string data = Pattern(10, bytes);
  c.near.Put(0, data);
  c.near.Post(Write(1, {c.near.memory.Piece(0, bytes)}, c.far.memory, 4096));
  ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  c.near.Put(0, std::string(bytes, '\0'));
  c.near.Post(Read(2, {c.near.memory.Piece(0, bytes)}, c.far.memory, 4096));
  ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 2));
  EXPECT_TRUE(c.near.Bytes(0, bytes) == data);
  c.far.Post(Receive(7, {c.far.memory.Piece(0, bytes)}));
  c.near.Post(Send(3, {c.near.memory.Piece(0, bytes)}));
  ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 3));
  ASSERT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  EXPECT_TRUE(c.far.Bytes(0, bytes) == data);
}

TEST_P(Opcodes, AMessageLargerThanThePortAllowsIsRefused) {
  constexpr uint32_t kPieces = 4;
  const uint64_t piece = near_info().port.max_msg_sz / kPieces + 1;
  if (piece > uint64_t{1} << 29) {
    GTEST_SKIP() << "a message over max_msg_sz, " << near_info().port.max_msg_sz
                 << " bytes, does not fit this test's memory";
  }
  EndOptions options;
  options.memory_bytes = piece;
  QpPair c = Connect(options);
  const ibv_sge all = c.near.memory.Piece(0, piece);
  const PostResult posted = c.near.TryPost({Write(1, {all, all, all, all}, c.far.memory, 0)});
  if (posted.error != 0) return;
  const ibv_wc wc = c.near.SendCompletion();
  EXPECT_THAT(wc, HasWrId(1));
  // The target's region is smaller still.
  EXPECT_THAT(wc.status, DemandStatus(IBV_WC_LOC_LEN_ERR, Departure::kOversizedMessageSent,
                                      IBV_WC_REM_ACCESS_ERR));
}

TEST_P(Opcodes, AnUnknownOpcodeIsRefusedAndTheQueueGoesOn) {
  QpPair c = Connect();
  SendWr wr = Send(2, {c.near.memory.Piece(0, 8)});
  wr.opcode = static_cast<ibv_wr_opcode>(13);
  const PostResult posted = c.near.TryPost({wr});
  if (!Demand(posted.error != 0, Departure::kUnknownOpcodeTaken)) {
    EXPECT_THAT(c.near.SendCompletion(), testing::Not(HasStatus(IBV_WC_SUCCESS)));
    return;
  }
  EXPECT_EQ(posted.accepted, 0u);
  ExpectWorks(c);
}

TEST_P(Opcodes, AnOpcodeThatTheDeviceLacksIsRefusedWhenPosted) {
  const DeviceCapabilities& can = capabilities();
  if (can.send_with_immediate && can.write_with_immediate && can.atomics && can.memory_windows) {
    GTEST_SKIP() << "the device has every opcode";
  }
  QpPair c = Connect();
  const auto refused = [&](SendWr wr) { return c.near.TryPost({wr}).error != 0; };
  const ibv_sge piece = c.near.memory.Piece(0, 8);
  if (!can.send_with_immediate) {
    EXPECT_TRUE(refused(SendImmediate(1, {piece}, 1)));
  }
  if (!can.write_with_immediate) {
    EXPECT_TRUE(refused(WriteImmediate(1, {piece}, c.far.memory, 0, 1)));
  }
  if (!can.atomics) {
    EXPECT_TRUE(refused(FetchAdd(1, piece, c.far.memory, 0, 1)));
  }
  if (!can.memory_windows) {
    // Keys can be invalidated also of regions, on devices that have these extensions.
    const bool extended =
        (near_info().attributes.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
    for (ibv_wr_opcode opcode : {IBV_WR_SEND_WITH_INV, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW}) {
      if (extended && opcode != IBV_WR_BIND_MW) continue;
      SendWr wr = Send(1, {piece});
      wr.opcode = opcode;
      EXPECT_TRUE(refused(wr)) << "opcode " << opcode;
    }
  }
  ExpectWorks(c);
}

TEST_P(Opcodes, ReadsAndAtomicsBeyondTheInitiatorDepthWaitTheirTurn) {
  LinkOptions link;
  link.max_rd_atomic = 1;
  link.max_dest_rd_atomic = 1;
  EndOptions options;
  options.cap.max_send_wr = 64;
  QpPair c = Connect(options, link);
  c.far.Put(0, Pattern(11, 6400));
  for (uint64_t i = 0; i < 64; ++i) {
    c.near.Post(Read(i, {c.near.memory.Piece(i * 100, 100)}, c.far.memory, i * 100));
  }
  const std::vector<ibv_wc> all = c.near.SendCompletions(64);
  for (uint64_t i = 0; i < 64; ++i) EXPECT_THAT(all[i], Succeeded(IBV_WC_RDMA_READ, i));
  EXPECT_EQ(c.near.Bytes(0, 6400), Pattern(11, 6400));
}

TEST_P(Opcodes, AReadIntoAQpWithoutResponderResourcesIsAnInvalidRequest) {
  if (!capabilities().remote_key_checked) GTEST_SKIP() << "the device does not report such faults";
  LinkOptions link;
  link.max_dest_rd_atomic = 0;
  QpPair c = Connect({}, link);
  c.near.Post(Read(1, {c.near.memory.Piece(0, 8)}, c.far.memory, 0));
  EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_REM_INV_REQ_ERR, 1));
}

VERBENA_CONFORMANCE_SUITE(Opcodes);

}  // namespace
}  // namespace verbena::internal::conformance
