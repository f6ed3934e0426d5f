// Devices with their engines running and several threads lose no wake-up, and go on while nobody
// polls. A lost wake-up would end in the time limit of AwaitByEvents.

#include <fcntl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/test_wire.h"
#include "tests/transport/soft/two_processes.h"

namespace verbena::internal::soft {
namespace engine_test {

class EngineTest : public testing::Test {
 protected:
  void MakeConnected(const QpEndOptions& options) {
    device_a_ = SoftDevice::Create(OnTestWire({.name = "a"})).value();
    device_b_ = SoftDevice::Create(OnTestWire({.name = "b"})).value();
    a_ = std::make_unique<QpEnd>(*device_a_, options);
    b_ = std::make_unique<QpEnd>(*device_b_, options);
    Connect(*a_, *b_);
  }

  std::unique_ptr<SoftDevice> device_a_;
  std::unique_ptr<SoftDevice> device_b_;
  std::unique_ptr<QpEnd> a_;
  std::unique_ptr<QpEnd> b_;
};

TEST_F(EngineTest, WithoutADescriptorForItsDoorbellADeviceIsNotReachedAndNobodyWaits) {
  VERBENA_SKIP_OVER_TCP("there is no doorbell");
  device_a_ = SoftDevice::Create({.name = "a"}).value();
  device_b_ = SoftDevice::Create({.name = "b"}).value();
  a_ = std::make_unique<QpEnd>(*device_a_, QpEndOptions{.with_channel = true});
  b_ = std::make_unique<QpEnd>(*device_b_, QpEndOptions{.with_channel = true});
  WithForbiddenCommand(SYS_fcntl, F_DUPFD_CLOEXEC, EMFILE, [this] { Connect(*a_, *b_); });
  if (IsSkipped()) return;
  EXPECT_EQ(device_a_->AwaitPeer(a_->qp()).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(a_->SendText(0, "anybody?"), 0);
  EXPECT_EQ(AwaitByEvents(*a_).status, IBV_WC_RETRY_EXC_ERR);
}

void PingPong(QpEnd& endpoint, bool starts, int rounds, bool signalled) {
  const unsigned flags = signalled ? IBV_SEND_SIGNALED : 0;
  int received = 0;
  int sent = 0;
  if (starts) {
    ASSERT_EQ(endpoint.SendText(0, "ping", flags), 0);
    ++sent;
  }
  int send_completions = 0;
  while (received < rounds || (signalled && send_completions < sent)) {
    const ibv_wc wc = AwaitByEvents(endpoint);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.opcode == IBV_WC_SEND) {
      ++send_completions;
      continue;
    }
    ++received;
    ASSERT_EQ(endpoint.PostReceive(0, endpoint.ReceiveSge(0, 64)), 0);
    if (sent == rounds) continue;
    // One signalled send in 16 keeps the queue from filling.
    ++sent;
    ASSERT_EQ(endpoint.SendText(0, "pong", sent % 16 == 0 ? IBV_SEND_SIGNALED : flags), 0);
  }
}

TEST_F(EngineTest, NoWakeUpIsLostBetweenTwoThreadsThatSleep) {
  MakeConnected({.with_channel = true});
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(a_->PostReceive(0, a_->ReceiveSge(0, 64)), 0);
    ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
  }
  constexpr int kRounds = 5'000;
  std::thread other([&] { PingPong(*b_, false, kRounds, true); });
  PingPong(*a_, true, kRounds, true);
  other.join();
}

TEST_F(EngineTest, NoWakeUpIsLostWhenOneSideSpinsAndTheOtherSleeps) {
  MakeConnected({.with_channel = true});
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(a_->PostReceive(0, a_->ReceiveSge(0, 64)), 0);
    ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
  }
  constexpr int kRounds = 5'000;
  std::thread other([&] { PingPong(*b_, false, kRounds, false); });
  ibv_wc wc;
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(a_->SendText(0, "ping"), 0);
    bool sent = false;
    bool received = false;
    while (!sent || !received) {
      if (ibv_poll_cq(a_->cq(), 1, &wc) == 0) {
        sched_yield();
        continue;
      }
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      (wc.opcode == IBV_WC_SEND ? sent : received) = true;
    }
    ASSERT_EQ(a_->PostReceive(0, a_->ReceiveSge(0, 64)), 0);
  }
  other.join();
}

TEST_F(EngineTest, NoWakeUpIsLostWithMorePeersThanAreWatchedClosely) {
  MakeConnected({.cqe = 4096, .shared_receives = true, .with_channel = true});
  constexpr size_t kSenders = 12;
  std::vector<std::unique_ptr<QpEnd>> senders;
  std::vector<QpHandle> receivers;
  for (size_t i = 0; i < kSenders; ++i) {
    senders.push_back(std::make_unique<QpEnd>(*device_a_, QpEndOptions{.bytes = 4096}));
    receivers.push_back(b_->AddQp());
    ConnectQps(*senders[i], senders[i]->qp(), *b_, receivers[i].get());
  }
  ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
  for (size_t i = 0; i < 3'000; ++i) {
    QpEnd& sender = *senders[i * 7 % kSenders];
    std::thread thread([&] {
      ASSERT_EQ(sender.PostSend(i, sender.SendSge(0, 16)), 0);
      ASSERT_EQ(AwaitByPolling(sender.cq()).status, IBV_WC_SUCCESS);
    });
    EXPECT_EQ(AwaitByEvents(*b_).status, IBV_WC_SUCCESS);
    ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
    thread.join();
  }
  receivers.clear();
}

TEST_F(EngineTest, OneSidedOperationsNeedNobodyToPollAtTheTarget) {
  MakeConnected({.with_channel = true});
  std::memcpy(a_->send_buffer(), "written", 7);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, 7),
                               reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey),
              0);
    const ibv_wc wc = AwaitByEvents(*a_);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(b_->ReceivedText(0, 7), "written");
}

TEST_F(EngineTest, UnpolledQueueCollectsWhatArrivesAndHandsItOutLater) {
  MakeConnected({.with_channel = true});
  for (uint64_t i = 0; i < 32; ++i) {
    ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(i * 64, 64)), 0);
    ASSERT_EQ(a_->SendText(i, "message"), 0);
    ASSERT_EQ(AwaitByEvents(*a_).status, IBV_WC_SUCCESS);
  }
  ibv_wc completions[64];
  ASSERT_EQ(ibv_poll_cq(b_->cq(), 64, completions), 32);
  for (uint64_t i = 0; i < 32; ++i) EXPECT_EQ(completions[i].wr_id, i);
}

TEST_F(EngineTest, RefusedSendIsRetriedWhileItsSenderSleeps) {
  MakeConnected({.with_channel = true, .min_rnr_timer = 1});
  ASSERT_EQ(a_->SendText(1, "patient"), 0);
  std::thread late([&] {
    // Once B's engine has refused it at least once, or not yet: both must end well.
    std::this_thread::yield();
    ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
  });
  EXPECT_EQ(AwaitByEvents(*a_).status, IBV_WC_SUCCESS);
  late.join();
  EXPECT_EQ(b_->ReceivedText(0, 7), "patient");
}

TEST_F(EngineTest, TwoThreadsMayPostToTwoQueuePairsOfOneCompletionQueue) {
  MakeConnected({.cqe = 4096, .receive_wr = 1024, .shared_receives = true});
  QpHandle other_a = a_->AddQp();
  QpHandle other_b = b_->AddQp();
  ConnectQps(*a_, other_a.get(), *b_, other_b.get());
  constexpr int kEach = 20'000;
  std::atomic<int> credits[2] = {32, 32};
  auto send = [&](int which, ibv_qp* qp) {
    for (int i = 0; i < kEach;) {
      if (credits[which].load() == 0) {
        sched_yield();
        continue;
      }
      --credits[which];
      ASSERT_EQ(a_->PostSend(which, a_->SendSge(0, 32), IBV_SEND_SIGNALED, qp), 0);
      ++i;
    }
  };
  for (int i = 0; i < 512; ++i) ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
  std::thread first([&] { send(0, a_->qp()); });
  std::thread second([&] { send(1, other_a.get()); });
  int received = 0;
  int sent = 0;
  ibv_wc wc[32];
  while (received < 2 * kEach || sent < 2 * kEach) {
    const int at_b = ibv_poll_cq(b_->cq(), 32, wc);
    for (int i = 0; i < at_b; ++i) {
      ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
      ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
    }
    received += at_b;
    const int at_a = ibv_poll_cq(a_->cq(), 32, wc);
    for (int i = 0; i < at_a; ++i) {
      ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
      ++credits[wc[i].wr_id];
    }
    sent += at_a;
    if (at_a + at_b == 0) sched_yield();
  }
  first.join();
  second.join();
}

TEST_F(EngineTest, QueuePairsComeAndGoWhileTheirPeersKeepSending) {
  MakeConnected({.cqe = 4096, .receive_wr = 2048, .shared_receives = true});
  std::jthread poller([&](const std::stop_token& stop) {
    ibv_wc wc;
    while (!stop.stop_requested()) {
      ibv_poll_cq(b_->cq(), 1, &wc);
      sched_yield();
    }
  });
  for (int i = 0; i < 300; ++i) {
    QpHandle qp_a = a_->AddQp();
    QpHandle qp_b = b_->AddQp();
    ConnectQps(*a_, qp_a.get(), *b_, qp_b.get());
    for (int j = 0; j < 4; ++j) {
      ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
      ASSERT_EQ(a_->PostSend(0, a_->SendSge(0, 32), IBV_SEND_SIGNALED, qp_a.get()), 0);
    }
    if (i % 2 == 0) qp_b.Reset();
    ibv_wc wc;
    // Each of the four ends: delivered, or refused because the target is gone, or flushed.
    for (int ended = 0; ended < 4;) {
      const int count = ibv_poll_cq(a_->cq(), 1, &wc);
      if (count == 0) sched_yield();
      ended += count;
    }
  }
}

}  // namespace engine_test
}  // namespace verbena::internal::soft
