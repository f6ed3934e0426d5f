// A completion queue raises one event for each arming, for solicited completions alone if asked
// for, and loses no wake-up.

#include <future>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

constexpr uint32_t kPingPongBytes = 32;

class Arming : public ConformanceTest {
 protected:
  static EndOptions WithChannel() {
    EndOptions options;
    options.channel = true;
    return options;
  }

  static void SendOne(QpPair& c, unsigned flags = 0) {
    c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
    c.near.Post(Flagged(Send(1, {c.near.memory.Piece(0, 8)}), flags));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  }

  // The next event of the far channel is about `cq`; it is acknowledged.
  void ExpectFarEvent(const QpPair& c, Cq cq) {
    const Cq event = Must(far().AwaitCqEvent(c.far.channel, kPatienceMs));
    EXPECT_EQ(event.id, cq.id) << "the event of another CQ came first";
    Must(far().AckCqEvents(event, 1));
  }

  // The far channel's next event is of the receives, but for a device that departs so.
  void ExpectSolicitedEvent(const QpPair& c, Departure departure) {
    if (!IsKnown(departure, near_info())) return ExpectFarEvent(c, c.far.recv_cq);
    const absl::StatusOr<Cq> event = far().AwaitCqEvent(c.far.channel, 200);
    if (Demand(event.ok(), departure)) Must(far().AckCqEvents(*event, 1));
  }

  // No event waits on the far channel: one that is provoked now is the next to come.
  void ExpectNoFarEventBefore(QpPair& c) {
    Must(far().Arm(c.far.send_cq, false));
    c.far.Post(Write(50, {c.far.memory.Piece(0, 8)}, c.near.memory, 8192));
    ExpectFarEvent(c, c.far.send_cq);
    EXPECT_THAT(c.far.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 50));
  }

  // Both sides bounce `rounds` messages; the far one in its own process or thread.
  void ExpectPingPong(QpPair& c, uint32_t rounds, bool events);
  // Bounces `rounds` messages within one time limit; the receives are posted already.
  void ExpectSomePingPong(QpPair& c, uint32_t rounds, bool events);
};

TEST_P(Arming, ACompletionAfterArmingRaisesAnEventOfItsCq) {
  QpPair c = Connect(WithChannel());
  Must(far().Arm(c.far.recv_cq, false));
  SendOne(c);
  ExpectFarEvent(c, c.far.recv_cq);
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
}

TEST_P(Arming, WithoutArmingThereIsNoEvent) {
  QpPair c = Connect(WithChannel());
  SendOne(c);
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  ExpectNoFarEventBefore(c);
}

TEST_P(Arming, OneArmingIsOneEvent) {
  QpPair c = Connect(WithChannel());
  Must(far().Arm(c.far.recv_cq, false));
  SendOne(c);
  ExpectFarEvent(c, c.far.recv_cq);
  SendOne(c);
  SendOne(c);
  c.far.ReceiveCompletions(3);
  ExpectNoFarEventBefore(c);
  Must(far().Arm(c.far.recv_cq, false));
  SendOne(c);
  ExpectFarEvent(c, c.far.recv_cq);
}

TEST_P(Arming, ArmingTwiceIsStillOneEvent) {
  QpPair c = Connect(WithChannel());
  Must(far().Arm(c.far.recv_cq, false));
  Must(far().Arm(c.far.recv_cq, false));
  SendOne(c);
  ExpectFarEvent(c, c.far.recv_cq);
  SendOne(c);
  c.far.ReceiveCompletions(2);
  ExpectNoFarEventBefore(c);
}

TEST_P(Arming, SendCompletionsRaiseEventsToo) {
  QpPair c = Connect(WithChannel());
  Must(near().Arm(c.near.send_cq, false));
  c.near.Post(Write(1, {c.near.memory.Piece(0, 8)}, c.far.memory, 0));
  const Cq event = Must(near().AwaitCqEvent(c.near.channel, kPatienceMs));
  EXPECT_EQ(event.id, c.near.send_cq.id);
  Must(near().AckCqEvents(event, 1));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
}

TEST_P(Arming, AReadThatEndsRaisesAnEvent) {
  QpPair c = Connect(WithChannel());
  Must(near().Arm(c.near.send_cq, false));
  c.near.Post(Read(1, {c.near.memory.Piece(0, 40000)}, c.far.memory, 0));
  Must(near().AckCqEvents(Must(near().AwaitCqEvent(c.near.channel, kPatienceMs)), 1));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 1));
}

TEST_P(Arming, AnUnsignalledWrRaisesNone) {
  QpPair c = Connect(WithChannel());
  Must(far().Arm(c.far.recv_cq, false));
  Must(near().Arm(c.near.send_cq, false));
  c.near.Post(Unsignalled(Write(1, {c.near.memory.Piece(0, 8)}, c.far.memory, 0)));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  c.near.Post(Unsignalled(Send(2, {c.near.memory.Piece(0, 8)})));
  ExpectFarEvent(c, c.far.recv_cq);
  EXPECT_TRUE(absl::IsDeadlineExceeded(near().AwaitCqEvent(c.near.channel, 0).status()));
}

TEST_P(Arming, ArmedForSolicitedOnesAloneAPlainMessageRaisesNone) {
  QpPair c = Connect(WithChannel());
  Must(far().Arm(c.far.recv_cq, true));
  SendOne(c);
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  ExpectNoFarEventBefore(c);
  SendOne(c, IBV_SEND_SOLICITED);
  ExpectSolicitedEvent(c, Departure::kSolicitedUnheard);
}

TEST_P(Arming, ASolicitedImmediateCountsToo) {
  if (!capabilities().write_with_immediate) GTEST_SKIP() << "the device has no immediates";
  QpPair c = Connect(WithChannel());
  Must(far().Arm(c.far.recv_cq, true));
  c.far.Post(Receive(7, {}));
  c.near.Post(Flagged(WriteImmediate(1, {c.near.memory.Piece(0, 8)}, c.far.memory, 64, 1),
                      IBV_SEND_SOLICITED));
  ExpectFarEvent(c, c.far.recv_cq);
}

TEST_P(Arming, AFailureIsSolicited) {
  QpPair c = Connect(WithChannel());
  Must(far().Arm(c.far.recv_cq, true));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  c.far.ToError();
  ExpectSolicitedEvent(c, Departure::kFailureUnheard);
  EXPECT_THAT(c.far.ReceiveCompletion(), Failed(IBV_WC_WR_FLUSH_ERR, 7));
}

TEST_P(Arming, TheDescriptorsOfADeviceDoNotBlock) {
  const CqChannel channel = Must(near().CreateChannel());
  Device& device = near().device();
  EXPECT_TRUE(absl::IsUnavailable(device.GetCqEvent(near().raw(channel)).status()));
  EXPECT_TRUE(absl::IsUnavailable(device.GetAsyncEvent().status()));
}

TEST_P(Arming, ACqIsNotDestroyedBeforeItsEventsAreAcknowledged) {
  QpPair c = Connect(WithChannel());
  Must(near().Arm(c.near.send_cq, false));
  c.near.Post(Write(1, {c.near.memory.Piece(0, 8)}, c.far.memory, 0));
  const Cq event = Must(near().AwaitCqEvent(c.near.channel, kPatienceMs));
  Must(near().DestroyQp(c.near.qp));
  std::future<absl::Status> destroyed =
      std::async(std::launch::async, [&] { return near().DestroyCq(c.near.send_cq); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout)
      << "destroyed with an event outstanding";
  Must(near().AckCqEvents(event, 1));
  ASSERT_EQ(destroyed.wait_for(std::chrono::milliseconds(kPatienceMs)), std::future_status::ready)
      << "still waiting although its event was acknowledged";
  EXPECT_TRUE(destroyed.get().ok());
}

void Arming::ExpectPingPong(QpPair& c, uint32_t rounds, bool events) {
  for (End* end : {&c.near, &c.far}) {
    for (uint32_t slot = 0; slot < kPingPongSlots; ++slot) {
      end->Post(Receive(slot, {end->memory.Piece(slot * kPingPongBytes, kPingPongBytes)}));
    }
  }
  // Each part has a time limit of its own: a round takes several wake-ups, each of which may wait
  // for others' time slices. All receives are posted again after each part.
  constexpr uint32_t kParts = 10;
  for (uint32_t part = 0; part < kParts && !HasFailure(); ++part) {
    ExpectSomePingPong(c, rounds / kParts, events);
  }
}

void Arming::ExpectSomePingPong(QpPair& c, uint32_t rounds, bool events) {
  const auto plan = [&](const End& end) {
    return PingPong{.qp = end.qp,
                    .cq = end.send_cq,
                    .channel = end.channel,
                    .memory = end.memory,
                    .rounds = rounds,
                    .bytes = kPingPongBytes,
                    .events = events,
                    .first = &end == &c.near,
                    .timeout_ms = 2 * kPatienceMs};
  };
  std::future<absl::Status> far_side =
      std::async(std::launch::async, [&] { return far().RunPingPong(plan(c.far)); });
  const absl::Status near_side = near().RunPingPong(plan(c.near));
  EXPECT_TRUE(near_side.ok()) << "near: " << near_side;
  const absl::Status status = far_side.get();
  EXPECT_TRUE(status.ok()) << "far: " << status;
}

TEST_P(Arming, NoWakeUpIsEverLost) {
  EndOptions options = WithChannel();
  options.one_cq = true;
  QpPair c = Connect(options);
  // Real devices may be emulated, with a millisecond for every sleep.
  const bool real = near_info().kind == DeviceKind::kRdma;
  ExpectPingPong(c, real ? 500 : 3000, /*events=*/true);
}

TEST_P(Arming, PollingNeedsNoEvents) {
  EndOptions options;
  options.one_cq = true;
  QpPair c = Connect(options);
  const bool real = near_info().kind == DeviceKind::kRdma;
  ExpectPingPong(c, real ? 300 : 1000, /*events=*/false);
}

TEST_P(Arming, NoWakeUpIsLostAmongSeveralQpsOfOneCq) {
  // The far CQ serves streams of several QPs; the near side arms its own for each message.
  constexpr uint32_t kQps = 4;
  constexpr uint32_t kRounds = 150;
  EndOptions options = WithChannel();
  options.one_cq = true;
  std::vector<QpPair> all{Connect(options)};
  while (all.size() < kQps) all.push_back(ConnectAgain(all.front(), options));
  const Cq cq = all[0].near.send_cq;
  uint32_t completions = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (QpPair& c : all) {
      c.near.Post(Write(round, {c.near.memory.Piece(0, 64)}, c.far.memory, 0));
    }
    const uint32_t due = (round + 1) * kQps;
    while (completions < due) {
      const auto polled = [&] {
        const size_t count = Must(near().Poll(cq, 16)).size();
        completions += static_cast<uint32_t>(count);
        return count > 0;
      };
      if (polled()) continue;
      Must(near().Arm(cq, false));
      if (polled()) continue;
      // An event that an earlier arming left behind is one too many, and harmless.
      Must(near().AckCqEvents(Must(near().AwaitCqEvent(all[0].near.channel, kPatienceMs)), 1));
    }
  }
  EXPECT_EQ(completions, kRounds * kQps);
}

VERBENA_CONFORMANCE_SUITE(Arming);

}  // namespace
}  // namespace verbena::internal::conformance
