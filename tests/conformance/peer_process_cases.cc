// A peer whose process is killed or stopped, in the middle of whatever it does, ends or delays its
// own connections only. What arrived is whole, and nothing lands once we are quiesced.

#include <algorithm>
#include <functional>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

constexpr uint64_t kLarge = 1 << 20;

class PeerProcess : public ConformanceTest {
 protected:
  static EndOptions Large() {
    EndOptions options;
    options.memory_bytes = 4 * kLarge;
    return options;
  }

  // A real device gives a silent peer up after about 30 ms.
  static LinkOptions Impatient() {
    LinkOptions link;
    link.timeout = 10;
    link.retry_count = 3;
    return link;
  }

  // A real device needs the peer's NIC, which answers also for a process that is stopped; it never
  // gives up.
  static LinkOptions Patient() {
    LinkOptions link;
    link.timeout = 0;
    return link;
  }

  // Receives for a stream of SENDs, as many as the far QP takes.
  static void PostReceives(End& end, uint64_t bytes) {
    for (uint64_t i = 0; i < 16; ++i) end.Post(Receive(i, {end.memory.Piece(0, bytes)}));
  }

  // WRs of one kind, as the near side would stream them.
  std::vector<std::pair<std::string, std::function<SendWr(const QpPair&)>>> Kinds() {
    return {
        {"SEND", [](const QpPair& c) { return Send(0, {c.near.memory.Piece(0, 64)}); }},
        {"small WRITE",
         [](const QpPair& c) { return Write(0, {c.near.memory.Piece(0, 64)}, c.far.memory, 0); }},
        {"large WRITE",
         [](const QpPair& c) {
           return Write(0, {c.near.memory.Piece(0, kLarge)}, c.far.memory, 0);
         }},
        {"large READ", [](const QpPair& c) {
           return Read(0, {c.near.memory.Piece(0, kLarge)}, c.far.memory, 0);
         }}};
  }

  // The near device is as good as new: it connects to a new peer.
  void ExpectDeviceLives() {
    ReplaceFarProcess();
    QpPair fresh = Connect();
    ExpectWorks(fresh);
    std::swap(fresh.near, fresh.far);
    ExpectWorks(fresh);
  }
};

TEST_P(PeerProcess, KilledUnderAStreamOfSendsItsWrsEndInErrors) {
  QpPair c = Connect({}, Impatient());
  PostReceives(c.far, 64);
  Must(near().StartStream({.qp = c.near.qp,
                           .cq = c.near.send_cq,
                           .wr = Send(0, {c.near.memory.Piece(0, 64)}),
                           .depth = 8}));
  AwaitStreamed(near(), 10);
  far_process()->Kill();
  AwaitStreamFailure(c.near);
  c.near.AwaitState(IBV_QPS_ERR);
  ExpectDeviceLives();
}

TEST_P(PeerProcess, KilledAsTheTargetOfOneSidedStreamsTheirWrsEndInErrors) {
  for (const auto& [name, wr] : Kinds()) {
    if (name == "SEND") continue;
    SCOPED_TRACE(name);
    QpPair c = Connect(Large(), Impatient());
    Must(near().StartStream({.qp = c.near.qp, .cq = c.near.send_cq, .wr = wr(c), .depth = 4}));
    AwaitStreamed(near(), 5);
    far_process()->Kill();
    AwaitStreamFailure(c.near);
    c.near.ExpectInError();
    Must(near().DestroyQp(c.near.qp));
    ReplaceFarProcess();
  }
  ExpectDeviceLives();
}

TEST_P(PeerProcess, KilledWhileItStreamsWhatArrivedIsWhole) {
  EndOptions options = Large();
  options.cap.max_recv_wr = 64;
  QpPair c = Connect(options, Impatient());
  constexpr uint64_t kBytes = 40000;
  for (uint64_t i = 0; i < 64; ++i) {
    c.near.Post(Receive(i, {c.near.memory.Piece(i * kBytes, kBytes)}));
  }
  c.far.Put(0, Pattern(3, kBytes));
  Must(far().StartStream({.qp = c.far.qp,
                          .cq = c.far.send_cq,
                          .wr = Send(0, {c.far.memory.Piece(0, kBytes)}),
                          .depth = 8}));
  std::vector<ibv_wc> received = c.near.ReceiveCompletions(5);
  far_process()->Kill();
  // Whatever still comes is complete; nothing waits for what will never come.
  const std::vector<ibv_wc> later = Must(near().Await(c.near.recv_cq, 59, 50));
  received.insert(received.end(), later.begin(), later.end());
  for (const ibv_wc& wc : received) {
    if (wc.status == IBV_WC_WR_FLUSH_ERR) break;
    ASSERT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
    ASSERT_EQ(wc.byte_len, kBytes);
    ASSERT_TRUE(c.near.Bytes(wc.wr_id * kBytes, kBytes) == Pattern(3, kBytes));
  }
  c.near.ToError();
  Must(near().DestroyQp(c.near.qp));
  ExpectDeviceLives();
}

TEST_P(PeerProcess, KilledWhileIdleTheNextWrEndsInAnError) {
  QpPair c = Connect({}, Impatient());
  ExpectWorks(c);
  far_process()->Kill();
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  ExpectSendFails(c.near);
  ExpectDeviceLives();
}

TEST_P(PeerProcess, KilledWhileOurSendAwaitsAReceiveTheSendFails) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  QpPair c = Connect({}, Impatient());
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  EXPECT_THAT(Must(near().Await(c.near.send_cq, 1, 10)), testing::IsEmpty());
  far_process()->Kill();
  ExpectSendFails(c.near);
  ExpectDeviceLives();
}

TEST_P(PeerProcess, ADeathWakesWhoSleepsOnItsCompletions) {
  EndOptions options;
  options.channel = true;
  QpPair c = Connect(options, Impatient());
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  Must(near().Arm(c.near.send_cq, false));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  far_process()->Kill();
  const Cq event = Must(near().AwaitCqEvent(c.near.channel, kPatienceMs));
  Must(near().AckCqEvents(event, 1));
  ExpectSendFails(c.near);
}

TEST_P(PeerProcess, ADeathHarmsNoConnectionToOthers) {
  QpPair c = Connect({}, Impatient());
  // Another connection of our device, to itself.
  QpPair own{.near = End(near(), near_info(), "near", {}),
             .far = End(near(), near_info(), "near too", {})};
  own.near.MakeQp({});
  own.far.MakeQp({});
  ConnectQps(own.near, own.far);
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  far_process()->Kill();
  for (int i = 0; i < 10; ++i) ExpectWorks(own);
  ExpectSendFails(c.near);
  for (int i = 0; i < 10; ++i) ExpectWorks(own);
}

TEST_P(PeerProcess, StoppedAsATargetItLosesNothingAndHoldsUpNobodyElse) {
  for (const auto& [name, wr] : Kinds()) {
    SCOPED_TRACE(name);
    QpPair c = Connect(Large(), Patient());
    QpPair own{.near = End(near(), near_info(), "near", {}),
               .far = End(near(), near_info(), "near too", {})};
    own.near.MakeQp({});
    own.far.MakeQp({});
    ConnectQps(own.near, own.far);
    PostReceives(c.far, 64);
    Must(far_process()->Stop());
    constexpr uint64_t kWrs = 8;
    for (uint64_t i = 0; i < kWrs; ++i) {
      SendWr numbered = wr(c);
      numbered.wr_id = i;
      c.near.Post(numbered);
    }
    for (int i = 0; i < 5; ++i) ExpectWorks(own);
    far_process()->Continue();
    const std::vector<ibv_wc> all = c.near.SendCompletions(kWrs);
    for (uint64_t i = 0; i < kWrs; ++i) {
      EXPECT_THAT(all[i], HasStatus(IBV_WC_SUCCESS));
      EXPECT_THAT(all[i], HasWrId(i));
    }
    ExpectWorks(own);
    Must(far().DestroyQp(c.far.qp));
    Must(near().DestroyQp(c.near.qp));
  }
}

TEST_P(PeerProcess, StoppedAndContinuedWhileItStreamsItsStreamGoesOn) {
  for (const uint64_t bytes : {uint64_t{64}, kLarge}) {
    SCOPED_TRACE(bytes);
    QpPair c = Connect(Large(), Patient());
    Must(far().StartStream({.qp = c.far.qp,
                            .cq = c.far.send_cq,
                            .wr = Write(0, {c.far.memory.Piece(0, bytes)}, c.near.memory, 0),
                            .depth = 4}));
    for (uint64_t stop = 0; stop < 10; ++stop) {
      const uint64_t before = Must(far().WatchStream()).completed;
      Must(far_process()->Stop());
      far_process()->Continue();
      AwaitStreamed(far(), before + 1);
    }
    const StreamState end = Must(far().StopStream(kPatienceMs));
    EXPECT_EQ(end.last_status, IBV_WC_SUCCESS);
    ExpectWorks(c);
    Must(far().DestroyQp(c.far.qp));
    Must(near().DestroyQp(c.near.qp));
  }
}

// The first correctness rule: a writer that is frozen in the middle of a copy must not write into
// memory that we believe to have back.
TEST_P(PeerProcess, StoppedInTheMiddleOfAWriteItWritesNothingOnceWeAreQuiesced) {
  int frozen_inside = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    QpPair c = Connect(Large(), Impatient());
    c.far.Put(0, Pattern(round, kLarge));
    Must(far().StartStream({.qp = c.far.qp,
                            .cq = c.far.send_cq,
                            .wr = Write(0, {c.far.memory.Piece(0, kLarge)}, c.near.memory, 0),
                            .depth = 4}));
    AwaitStreamed(far(), 2 + round);
    Must(far_process()->Stop());
    // None of this waits for the frozen process.
    const Qp qp = c.near.qp;
    c.near.ToError();
    Must(near().DestroyQp(c.near.qp));
    const bool quiesced = Must(near().Quiesced(qp));
    if (!quiesced) {
      ++frozen_inside;
    } else {
      c.near.Put(0, std::string(kLarge, '\0'));
    }
    far_process()->Continue();
    const TimeLimit deadline(kPatienceMs);
    while (!Must(near().Quiesced(qp))) {
      ASSERT_FALSE(deadline.passed()) << "the peer runs again, and we are never quiesced";
    }
    if (!quiesced) c.near.Put(0, std::string(kLarge, '\0'));
    AwaitStreamFailure(c.far);
    EXPECT_TRUE(c.near.Bytes(0, kLarge) == std::string(kLarge, '\0'))
        << "a late WRITE landed, round " << round;
    Must(far().DestroyQp(c.far.qp));
  }
  RecordProperty("stopped_inside_a_copy", frozen_inside);
}

TEST_P(PeerProcess, KilledWhileStoppedInTheMiddleOfAWriteItsMemoryComesBack) {
  for (uint32_t round = 0; round < 4; ++round) {
    QpPair c = Connect(Large(), Impatient());
    Must(far().StartStream({.qp = c.far.qp,
                            .cq = c.far.send_cq,
                            .wr = Write(0, {c.far.memory.Piece(0, kLarge)}, c.near.memory, 0),
                            .depth = 4}));
    AwaitStreamed(far(), 2 + round);
    Must(far_process()->Stop());
    const Qp qp = c.near.qp;
    Must(near().DestroyQp(c.near.qp));
    far_process()->Kill();
    const TimeLimit deadline(kPatienceMs);
    while (!Must(near().Quiesced(qp))) {
      ASSERT_FALSE(deadline.passed()) << "the peer is dead, and we are never quiesced";
    }
    c.near.Put(0, std::string(kLarge, '\0'));
    Must(near().Deregister(c.near.memory));
    EXPECT_TRUE(c.near.Bytes(0, kLarge) == std::string(kLarge, '\0'));
    ReplaceFarProcess();
  }
}

VERBENA_CONFORMANCE_PROCESS_SUITE(PeerProcess);

}  // namespace
}  // namespace verbena::internal::conformance
