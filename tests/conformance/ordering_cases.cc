// A reliable connection keeps its order within one QP: messages, WRITEs, READs and atomics do not
// overtake a SEND, and completions come in the order posted. One blocked QP delays no other.

#include <arpa/inet.h>

#include <algorithm>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

class Ordering : public ConformanceTest {
 protected:
  // Lets the device do as much as it likes: round trips on another connection of the same hosts.
  // Whatever was going to overtake a blocked SEND has had its chance.
  void LetTimePass(const QpPair& other) {
    QpPair busy = ConnectAgain(other);
    for (int i = 0; i < 20; ++i) {
      ExpectWorks(busy);
      std::swap(busy.near, busy.far);
    }
  }
};

TEST_P(Ordering, MessagesOfAllSizesArriveInTheOrderPosted) {
  constexpr uint64_t kMessages = 600;
  constexpr uint64_t kWindow = 16;
  constexpr uint64_t kStride = 4096;
  EndOptions options;
  options.memory_bytes = kStride * kWindow;
  QpPair c = Connect(options);
  const auto size_of = [](uint64_t i) { return 8 + (i * 613) % (kStride - 8); };
  const auto receive = [&](uint64_t i) {
    c.far.Post(Receive(i, {c.far.memory.Piece((i % kWindow) * kStride, kStride)}));
  };
  const auto send = [&](uint64_t i) {
    c.near.PutWord((i % kWindow) * kStride, i);
    c.near.Post(Send(i, {c.near.memory.Piece((i % kWindow) * kStride, size_of(i))}));
  };
  for (uint64_t i = 0; i < kWindow; ++i) receive(i);
  for (uint64_t i = 0; i < kWindow; ++i) send(i);
  for (uint64_t i = 0; i < kMessages; ++i) {
    const ibv_wc received = c.far.ReceiveCompletion();
    ASSERT_THAT(received, Succeeded(IBV_WC_RECV, i));
    ASSERT_EQ(received.byte_len, size_of(i));
    ASSERT_EQ(c.far.Word((i % kWindow) * kStride), i);
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, i));
    if (i + kWindow >= kMessages) continue;
    receive(i + kWindow);
    send(i + kWindow);
  }
}

TEST_P(Ordering, ASendProvesThatTheWritesBeforeItHaveLanded) {
  constexpr uint64_t kBytes = 20000;
  QpPair c = Connect();
  for (uint32_t round = 0; round < 60; ++round) {
    c.near.Put(0, Pattern(round, kBytes));
    c.far.Post(Receive(round, {c.far.memory.Piece(0, 8)}));
    ASSERT_THAT(
        c.near.TryPost({Unsignalled(Write(0, {c.near.memory.Piece(0, kBytes)}, c.far.memory, 4096)),
                        Send(round, {c.near.memory.Piece(0, 8)})}),
        Accepted());
    ASSERT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, round));
    ASSERT_TRUE(c.far.Bytes(4096, kBytes) == Pattern(round, kBytes)) << "round " << round;
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, round));
  }
}

TEST_P(Ordering, AWriteDoesNotOvertakeASendThatAwaitsAReceive) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  QpPair c = Connect();
  c.near.Put(0, Pattern(1, 64));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  c.near.Post(Write(2, {c.near.memory.Piece(0, 64)}, c.far.memory, 8192));
  LetTimePass(c);
  EXPECT_EQ(c.far.Bytes(8192, 64), std::string(64, '\0')) << "the WRITE has overtaken the SEND";
  EXPECT_THAT(c.near.PollAll(), testing::IsEmpty());
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 2));
  EXPECT_EQ(c.far.Bytes(8192, 64), Pattern(1, 64));
}

TEST_P(Ordering, AReadDoesNotOvertakeASendThatAwaitsAReceive) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  QpPair c = Connect();
  c.far.Put(8192, Pattern(1, 64));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  c.near.Post(Read(2, {c.near.memory.Piece(4096, 64)}, c.far.memory, 8192));
  LetTimePass(c);
  EXPECT_THAT(c.near.PollAll(), testing::IsEmpty());
  c.far.Put(8192, Pattern(2, 64));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 2));
  EXPECT_EQ(c.near.Bytes(4096, 64), Pattern(2, 64)) << "the READ has overtaken the SEND";
}

TEST_P(Ordering, AnAtomicDoesNotOvertakeASendThatAwaitsAReceive) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  if (!capabilities().atomics) GTEST_SKIP() << "the device has no atomics";
  QpPair c = Connect();
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  c.near.Post(FetchAdd(2, c.near.memory.Piece(4096, 8), c.far.memory, 8192, 5));
  LetTimePass(c);
  EXPECT_EQ(c.far.Word(8192), 0u) << "the atomic has overtaken the SEND";
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_FETCH_ADD, 2));
  EXPECT_EQ(c.far.Word(8192), 5u);
}

TEST_P(Ordering, ABlockedQpDoesNotHoldUpItsNeighbours) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  QpPair blocked = Connect();
  blocked.near.Post(Send(1, {blocked.near.memory.Piece(4096, 8)}));
  QpPair free = ConnectAgain(blocked);
  for (int i = 0; i < 10; ++i) ExpectWorks(free);
  blocked.far.Post(Receive(7, {blocked.far.memory.Piece(4096, 8)}));
  EXPECT_THAT(blocked.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(blocked.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
}

TEST_P(Ordering, AReadSeesTheWritePostedBeforeIt) {
  constexpr uint64_t kBytes = 10000;
  QpPair c = Connect();
  for (uint32_t round = 0; round < 60; ++round) {
    c.near.Put(0, Pattern(round, kBytes));
    ASSERT_THAT(
        c.near.TryPost({Unsignalled(Write(1, {c.near.memory.Piece(0, kBytes)}, c.far.memory, 100)),
                        Read(2, {c.near.memory.Piece(20000, kBytes)}, c.far.memory, 100)}),
        Accepted());
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 2));
    ASSERT_TRUE(c.near.Bytes(20000, kBytes) == Pattern(round, kBytes)) << "round " << round;
  }
}

TEST_P(Ordering, ACompletedWrHasLeftItsMemoryWhichMayBeUsedAgain) {
  constexpr uint64_t kHalf = 32768;
  for (const uint64_t bytes : {uint64_t{1000}, uint64_t{30000}}) {
    SCOPED_TRACE(bytes);
    QpPair c = Connect();
    const std::string scribble(bytes, '\xee');
    for (uint32_t round = 0; round < 40; ++round) {
      const std::string written = Pattern(2 * round, bytes);
      const std::string sent = Pattern(2 * round + 1, bytes);
      c.near.Put(0, written);
      c.near.Put(kHalf, sent);
      c.far.Post(Receive(7, {c.far.memory.Piece(kHalf, bytes)}));
      c.near.Post(Write(1, {c.near.memory.Piece(0, bytes)}, c.far.memory, 0));
      ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
      c.near.Put(0, scribble);
      c.near.Post(Send(2, {c.near.memory.Piece(kHalf, bytes)}));
      ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 2));
      c.near.Put(kHalf, scribble);
      ASSERT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
      ASSERT_TRUE(c.far.Bytes(0, bytes) == written) << "WRITE, round " << round;
      ASSERT_TRUE(c.far.Bytes(kHalf, bytes) == sent) << "SEND, round " << round;
    }
  }
}

TEST_P(Ordering, AWrBehindAFenceSeesWhatTheReadBeforeItFetched) {
  constexpr uint64_t kBytes = 10000;
  QpPair c = Connect();
  for (uint32_t round = 0; round < 40; ++round) {
    c.far.Put(0, Pattern(round, kBytes));
    c.near.Put(0, std::string(kBytes, '\0'));
    c.far.Post(Receive(7, {c.far.memory.Piece(20000, kBytes)}));
    const ibv_sge piece = c.near.memory.Piece(0, kBytes);
    ASSERT_THAT(c.near.TryPost(
                    {Unsignalled(Read(1, {piece}, c.far.memory, 0)),
                     Unsignalled(Flagged(Write(2, {piece}, c.far.memory, 40000), IBV_SEND_FENCE)),
                     Flagged(Send(3, {piece}), IBV_SEND_FENCE)}),
                Accepted());
    ASSERT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 3));
    ASSERT_TRUE(c.far.Bytes(20000, kBytes) == Pattern(round, kBytes)) << "SEND, round " << round;
    ASSERT_TRUE(c.far.Bytes(40000, kBytes) == Pattern(round, kBytes)) << "WRITE, round " << round;
  }
}

TEST_P(Ordering, CompletionsOfAllOpcodesComeInTheOrderPosted) {
  constexpr uint64_t kWrs = 48;
  EndOptions options;
  options.cap.max_send_wr = kWrs;
  options.cap.max_recv_wr = kWrs;
  QpPair c = Connect(options);
  std::vector<SendWr> chain;
  std::vector<ibv_wc_opcode> expected;
  for (uint64_t i = 0; i < kWrs; ++i) {
    const ibv_sge piece = c.near.memory.Piece(i * 1000, 8);
    const ibv_sge large = c.near.memory.Piece(0, 60000);
    switch (i % 4) {
      case 0:
        c.far.Post(Receive(i, {c.far.memory.Piece(0, 8)}));
        chain.push_back(Send(i, {piece}));
        expected.push_back(IBV_WC_SEND);
        break;
      case 1:
        chain.push_back(Read(i, {large}, c.far.memory, 0));
        expected.push_back(IBV_WC_RDMA_READ);
        break;
      case 2:
        chain.push_back(Write(i, {piece}, c.far.memory, 8));
        expected.push_back(IBV_WC_RDMA_WRITE);
        break;
      default:
        if (capabilities().atomics) {
          chain.push_back(FetchAdd(i, piece, c.far.memory, 4096, 1));
          expected.push_back(IBV_WC_FETCH_ADD);
        } else {
          chain.push_back(Write(i, {large}, c.far.memory, 8));
          expected.push_back(IBV_WC_RDMA_WRITE);
        }
    }
  }
  ASSERT_THAT(c.near.TryPost(chain), Accepted());
  std::vector<ibv_wc> all = c.near.SendCompletions(kWrs);
  const auto by_wr_id = [](const ibv_wc& a, const ibv_wc& b) { return a.wr_id < b.wr_id; };
  if (!Demand(std::is_sorted(all.begin(), all.end(), by_wr_id), Departure::kReadOvertaken)) {
    std::sort(all.begin(), all.end(), by_wr_id);
  }
  for (uint64_t i = 0; i < kWrs; ++i) EXPECT_THAT(all[i], Succeeded(expected[i], i));
}

TEST_P(Ordering, ImmediatesOfSendsAndWritesConsumeReceivesInOnePostedOrder) {
  if (!capabilities().write_with_immediate) GTEST_SKIP() << "the device has no immediates";
  constexpr uint32_t kMessages = 16;
  QpPair c = Connect();
  for (uint32_t i = 0; i < kMessages; ++i) {
    c.far.Post(Receive(i, {c.far.memory.Piece(i * 64, 64)}));
  }
  for (uint32_t i = 0; i < kMessages; ++i) {
    const ibv_sge piece = c.near.memory.Piece(0, 16);
    c.near.Post(i % 2 == 0 ? SendImmediate(i, {piece}, 100 + i)
                           : WriteImmediate(i, {piece}, c.far.memory, 8192, 100 + i));
  }
  const std::vector<ibv_wc> received = c.far.ReceiveCompletions(kMessages);
  for (uint32_t i = 0; i < kMessages; ++i) {
    EXPECT_THAT(received[i], Succeeded(i % 2 == 0 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, i));
    EXPECT_EQ(ntohl(received[i].imm_data), 100 + i);
  }
}

TEST_P(Ordering, BothDirectionsOfAQpRunAtOnce) {
  constexpr uint64_t kMessages = 16;
  QpPair c = Connect();
  for (End* end : {&c.near, &c.far}) {
    for (uint64_t i = 0; i < kMessages; ++i) {
      end->Post(Receive(i, {end->memory.Piece(i * 64, 64)}));
    }
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    for (End* end : {&c.near, &c.far}) {
      end->PutWord(8192 + i * 64, i * 10);
      end->Post(Send(i, {end->memory.Piece(8192 + i * 64, 64)}));
    }
  }
  for (End* end : {&c.near, &c.far}) {
    const std::vector<ibv_wc> received = end->ReceiveCompletions(kMessages);
    const std::vector<ibv_wc> sent = end->SendCompletions(kMessages);
    for (uint64_t i = 0; i < kMessages; ++i) {
      EXPECT_THAT(received[i], Succeeded(IBV_WC_RECV, i)) << end->name();
      EXPECT_THAT(sent[i], Succeeded(IBV_WC_SEND, i)) << end->name();
      EXPECT_EQ(end->Word(i * 64), i * 10) << end->name();
    }
  }
}

VERBENA_CONFORMANCE_SUITE(Ordering);

}  // namespace
}  // namespace verbena::internal::conformance
