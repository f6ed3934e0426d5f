// Bindings and invalidations of memory windows keep their place among the WRs around them, and fail
// as specified. The devices are stepped by hand, so that the test decides the order of events. Over
// TCP (test_wire.h) the engines have a part in it, so that Settle() lets them run, too.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/test_wire.h"
#include "tests/transport/soft/window.h"

namespace verbena::internal::soft {
namespace windows_test {

using testing::ElementsAre;
using testing::IsEmpty;

// The tests run with and without direct copies by initiators, and with one CQ and with two.
struct Ways {
  bool direct_copies;
  bool separate_cqs;
};

// a_ uses the windows of b_.
class WindowsTest : public testing::TestWithParam<Ways> {
 protected:
  WindowsTest() {
    if (TestWire() == "tcp6" && !HasIpv6()) return;
    const SoftDeviceOptions options = OnTestWire(
        {.engine_thread = false, .direct_copies = GetParam().direct_copies, .clock = &clock_});
    device_a_ = SoftDevice::Create(options).value();
    device_b_ = SoftDevice::Create(options).value();
    const QpEndOptions endpoint{.separate_cqs = GetParam().separate_cqs, .access = kAccess};
    a_ = std::make_unique<QpEnd>(*device_a_, endpoint);
    b_ = std::make_unique<QpEnd>(*device_b_, endpoint);
    Connect(*a_, *b_);
    StepOverTcp();
  }
  void SetUp() override {
    if (device_a_ == nullptr) GTEST_SKIP() << "this machine has no IPv6";
  }

  // Lets all that was connected or posted reach the other side.
  void StepOverTcp() {
    if (!OverTcp()) return;
    for (int i = 0; i < 8; ++i) {
      device_a_->Step();
      device_b_->Step();
    }
  }
  static std::vector<ibv_wc> Poll(ibv_cq* cq) {
    std::vector<ibv_wc> completions(64);
    completions.resize(static_cast<size_t>(ibv_poll_cq(cq, 64, completions.data())));
    return completions;
  }
  // Both sides poll until nothing moves any more; what came is kept by endpoint.
  void Settle() {
    for (int i = 0; i < 16; ++i) {
      StepOverTcp();
      for (QpEnd* endpoint : {a_.get(), b_.get()}) {
        std::vector<ibv_wc>& came = endpoint == a_.get() ? came_a_ : came_b_;
        for (ibv_cq* cq : {endpoint->cq(), endpoint->send_cq()}) {
          const std::vector<ibv_wc> some = Poll(cq);
          came.insert(came.end(), some.begin(), some.end());
        }
      }
    }
  }
  static std::vector<std::pair<uint64_t, ibv_wc_status>> Take(std::vector<ibv_wc>& came) {
    std::vector<std::pair<uint64_t, ibv_wc_status>> taken;
    for (const ibv_wc& wc : came) taken.emplace_back(wc.wr_id, wc.status);
    came.clear();
    return taken;
  }
  auto TakeA() {
    Settle();
    return Take(came_a_);
  }
  auto TakeB() {
    Settle();
    return Take(came_b_);
  }

  int Write(uint64_t wr_id, uint32_t bytes, uint32_t rkey, uint64_t offset = 0) {
    return a_->PostOneSided(IBV_WR_RDMA_WRITE, wr_id, a_->SendSge(0, bytes),
                            reinterpret_cast<uint64_t>(b_->receive_buffer()) + offset, rkey);
  }
  static std::vector<ibv_event_type> AsyncEvents(Device& device) {
    std::vector<ibv_event_type> types;
    while (true) {
      auto event = device.GetAsyncEvent();
      if (!event.ok()) return types;
      types.push_back(event->event_type);
      device.AckAsyncEvent(*event);
    }
  }
  static ibv_qp_state StateOf(QpEnd& endpoint) {
    return endpoint.device().QueryQp(endpoint.qp(), IBV_QP_STATE).value().qp_state;
  }

  ManualClock clock_;
  std::unique_ptr<SoftDevice> device_a_;
  std::unique_ptr<SoftDevice> device_b_;
  std::unique_ptr<QpEnd> a_;
  std::unique_ptr<QpEnd> b_;
  std::vector<ibv_wc> came_a_;
  std::vector<ibv_wc> came_b_;
};

constexpr auto kOk = IBV_WC_SUCCESS;

std::pair<uint64_t, ibv_wc_status> Ended(uint64_t wr_id, ibv_wc_status status) {
  return {wr_id, status};
}

TEST_P(WindowsTest, TheDeviceSaysThatItHasThem) {
  EXPECT_TRUE(device_a_->capabilities().memory_windows);
  EXPECT_GT(device_a_->attributes().max_mw, 0);
  EXPECT_NE(device_a_->attributes().device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0u);
  EXPECT_NE(device_a_->attributes().device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS, 0u);
}

TEST_P(WindowsTest, LifeOfABinding) {
  Window window(*b_);
  ASSERT_EQ(window.PostBind(1, 100), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk)));
  std::memset(a_->send_buffer(), 'x', 100);
  ASSERT_EQ(Write(2, 100, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(2, kOk)));
  EXPECT_EQ(b_->ReceivedText(0, 101), std::string(100, 'x') + '\0');
  ASSERT_EQ(PostInvalidate(b_->qp(), 3, window.rkey()), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(3, kOk)));
  std::memset(a_->send_buffer(), 'y', 100);
  ASSERT_EQ(Write(4, 100, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(4, IBV_WC_REM_ACCESS_ERR)));
  EXPECT_EQ(b_->ReceivedText(0, 100), std::string(100, 'x'));
  EXPECT_THAT(AsyncEvents(*device_b_), ElementsAre(IBV_EVENT_QP_ACCESS_ERR));
}

TEST_P(WindowsTest, InvalidationThatIsNotAllowedFailsTheQp) {
  Window window(*b_);
  ASSERT_EQ(PostInvalidate(b_->qp(), 1, window.rkey()), 0);
  ASSERT_EQ(PostInvalidate(b_->qp(), 2, window.rkey()), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, IBV_WC_MW_BIND_ERR), Ended(2, IBV_WC_WR_FLUSH_ERR)));
  EXPECT_EQ(StateOf(*b_), IBV_QPS_ERR);
}

TEST_P(WindowsTest, ARegionsOwnKeyIsNotInvalidated) {
  ASSERT_EQ(PostInvalidate(b_->qp(), 1, b_->mr()->rkey), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, IBV_WC_MW_BIND_ERR)));
}

TEST_P(WindowsTest, ASendThatMayNotInvalidateIsRefusedAndNoReceiveIsTaken) {
  Window window(*b_);
  ASSERT_EQ(b_->PostReceive(7, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(PostSendInvalidate(*a_, 1, 10, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(1, IBV_WC_REM_ACCESS_ERR)));
  EXPECT_THAT(TakeB(), ElementsAre(Ended(7, IBV_WC_WR_FLUSH_ERR)));
  EXPECT_EQ(StateOf(*b_), IBV_QPS_ERR);
  EXPECT_THAT(AsyncEvents(*device_b_), ElementsAre(IBV_EVENT_QP_ACCESS_ERR));
}

TEST_P(WindowsTest, MalformedWrsAreRefusedWhenPosted) {
  Window window(*b_);
  const ibv_mw_bind_info bind{.mr = b_->mr(),
                              .addr = reinterpret_cast<uint64_t>(b_->receive_buffer()),
                              .length = 10,
                              .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  const uint32_t key = ibv_inc_rkey(window.rkey());
  EXPECT_EQ(PostWindow(b_->qp(), IBV_WR_BIND_MW, 1, key, bind, nullptr), EINVAL);
  EXPECT_EQ(PostWindow(b_->qp(), IBV_WR_BIND_MW, 1, key, {}, window.get()), EINVAL) << "unbinding";
  EXPECT_EQ(PostWindow(a_->qp(), IBV_WR_BIND_MW, 1, key, bind, window.get()), EINVAL)
      << "of another device";
  EXPECT_EQ(PostWindow(b_->qp(), IBV_WR_BIND_MW, 1, key, bind, window.get(),
                       IBV_SEND_SIGNALED | IBV_SEND_INLINE),
            EINVAL);
  EXPECT_EQ(window.PostBind(2, 10), 0) << "and no harm was done";
  EXPECT_THAT(TakeB(), ElementsAre(Ended(2, kOk)));
}

TEST_P(WindowsTest, ABindingUnderTheKeyThatTheWindowHadLastFails) {
  Window window(*b_);
  ASSERT_EQ(window.PostBind(1, 10), 0);
  ASSERT_EQ(PostInvalidate(b_->qp(), 2, window.rkey()), 0);
  const ibv_mw_bind_info bind{.mr = b_->mr(),
                              .addr = reinterpret_cast<uint64_t>(b_->receive_buffer()),
                              .length = 10,
                              .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(PostWindow(b_->qp(), IBV_WR_BIND_MW, 3, window.rkey(), bind, window.get()), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk), Ended(2, kOk), Ended(3, IBV_WC_MW_BIND_ERR)));
}

TEST_P(WindowsTest, AWindowCannotBeBoundToAWindow) {
  Window outer(*b_);
  Window inner(*b_);
  ASSERT_EQ(outer.PostBind(1, 100), 0);
  ibv_mr forged = *b_->mr();
  forged.lkey = outer.rkey();
  const ibv_mw_bind_info bind{.mr = &forged,
                              .addr = reinterpret_cast<uint64_t>(b_->receive_buffer()),
                              .length = 10,
                              .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(PostWindow(b_->qp(), IBV_WR_BIND_MW, 2, ibv_inc_rkey(inner.rkey()), bind, inner.get()),
            0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk), Ended(2, IBV_WC_MW_BIND_ERR)));
}

TEST_P(WindowsTest, ABindingTakesEffectAtOnceAndCompletesInItsTurn) {
  Window window(*b_);
  // The SEND before it is not consumed yet, and not signalled.
  ASSERT_EQ(a_->PostReceive(7, a_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(b_->SendText(1, "before", 0), 0);
  ASSERT_EQ(window.PostBind(2, 100), 0);
  ASSERT_EQ(window.PostBind(3, 100), 0) << "a second time: it fails, but not before its turn";
  EXPECT_THAT(Poll(b_->send_cq()), IsEmpty());
  ibv_mr* mr = b_->mr();
  EXPECT_EQ(device_b_->DeregMr(mr).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(7, kOk)));
  EXPECT_THAT(TakeB(), ElementsAre(Ended(2, kOk), Ended(3, IBV_WC_MW_BIND_ERR)));
}

TEST_P(WindowsTest, AnInvalidationWaitsUntilAllBeforeItIsOver) {
  Window window(*b_);
  ASSERT_EQ(window.PostBind(1, 100), 0);
  ASSERT_EQ(b_->SendText(2, "no receive yet", 0), 0);
  ASSERT_EQ(PostInvalidate(b_->qp(), 3, window.rkey()), 0);
  ASSERT_EQ(b_->SendText(4, "behind it"), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk)));
  // Still open.
  ASSERT_EQ(Write(5, 100, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(5, kOk)));
  for (uint64_t i : {7, 8}) ASSERT_EQ(a_->PostReceive(i, a_->ReceiveSge(i * 100, 100)), 0);
  clock_.Advance(std::chrono::seconds(1));
  for (int i = 0; i < 8; ++i) device_b_->Step();
  EXPECT_THAT(TakeB(), ElementsAre(Ended(3, kOk), Ended(4, kOk)));
  EXPECT_THAT(TakeA(), ElementsAre(Ended(7, kOk), Ended(8, kOk)));
  ASSERT_EQ(Write(6, 100, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(6, IBV_WC_REM_ACCESS_ERR)));
}

TEST_P(WindowsTest, BehindARetriedSendABindingStandsAndIsNotRepeated) {
  Window window(*b_);
  ASSERT_EQ(b_->SendText(1, "no receive yet"), 0);
  ASSERT_EQ(window.PostBind(2, 100), 0);
  ASSERT_EQ(b_->SendText(3, "behind it"), 0);
  EXPECT_THAT(TakeB(), IsEmpty());
  ASSERT_EQ(Write(5, 100, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(5, kOk)));
  for (uint64_t i : {7, 8}) ASSERT_EQ(a_->PostReceive(i, a_->ReceiveSge(i * 100, 100)), 0);
  clock_.Advance(std::chrono::seconds(1));
  for (int i = 0; i < 8; ++i) device_b_->Step();
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk), Ended(2, kOk), Ended(3, kOk)));
}

TEST_P(WindowsTest, ManySignalledBindingsBehindOneSendAllComplete) {
  constexpr uint64_t kWindows = 40;
  std::vector<std::unique_ptr<Window>> windows;
  ASSERT_EQ(a_->PostReceive(7, a_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(b_->SendText(100, "before", 0), 0);
  for (uint64_t i = 0; i < kWindows; ++i) {
    windows.push_back(std::make_unique<Window>(*b_));
    ASSERT_EQ(windows.back()->PostBind(i, 10, nullptr, i % 3 == 0 ? IBV_SEND_SIGNALED : 0), 0);
  }
  Settle();
  std::vector<uint64_t> bound;
  for (const ibv_wc& wc : came_b_) {
    EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
    bound.push_back(wc.wr_id);
  }
  std::vector<uint64_t> signalled;
  for (uint64_t i = 0; i < kWindows; i += 3) signalled.push_back(i);
  EXPECT_EQ(bound, signalled);
}

TEST_P(WindowsTest, AWriteOfManyFragmentsIsRefusedFromWhereItsWindowWasClosed) {
  // The writer's ring takes only a part of it at a time, when the target is to execute it.
  if (GetParam().direct_copies) GTEST_SKIP() << "of writes that the target executes";
  const QpEndOptions options{.bytes = 4 << 20, .access = kAccess};
  QpEnd a(*device_a_, options);
  QpEnd b(*device_b_, options);
  Connect(a, b);
  StepOverTcp();
  Window window(b);
  ASSERT_EQ(window.PostBind(1, 2 << 20), 0);
  std::memset(a.send_buffer(), 'x', 2 << 20);
  ASSERT_EQ(a.PostOneSided(IBV_WR_RDMA_WRITE, 2, a.SendSge(0, 2 << 20),
                           reinterpret_cast<uint64_t>(b.receive_buffer()), window.rkey()),
            0);
  size_t bound = Poll(b.cq()).size();
  // One poll takes no more than a part of a fragment from a socket.
  for (int poll = 0; OverTcp() && poll < 100 && b.receive_buffer()[0] != std::byte('x'); ++poll) {
    bound += Poll(b.cq()).size();
  }
  EXPECT_EQ(bound, 1u) << "the binding; and the first fragments are executed";
  EXPECT_EQ(b.receive_buffer()[0], std::byte('x'));
  ASSERT_EQ(PostInvalidate(b.qp(), 3, window.rkey()), 0);
  EXPECT_EQ(Poll(b.cq()).size(), 1u);
  const std::string before(reinterpret_cast<char*>(b.receive_buffer()), 2 << 20);
  std::vector<ibv_wc> sent;
  for (int turn = 0; turn < 10'000 && sent.empty(); ++turn) {
    StepOverTcp();
    sent = Poll(a.cq());
    Poll(b.cq());
  }
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(std::memcmp(before.data(), b.receive_buffer(), before.size()), 0);
}

TEST_P(WindowsTest, AQpThatIsDestroyedLeavesItsWindowsFree) {
  Window window(*b_);
  ibv_mr* region = device_b_->RegMr(b_->pd(), b_->receive_buffer(), 100, kAccess).value();
  const ibv_mw_bind_info bind{.mr = region,
                              .addr = reinterpret_cast<uint64_t>(b_->receive_buffer()),
                              .length = 100,
                              .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(
      PostWindow(b_->qp(), IBV_WR_BIND_MW, 1, ibv_inc_rkey(window.rkey()), bind, window.get()), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk)));
  EXPECT_FALSE(device_b_->DeregMr(region).ok());
  b_->qp_handle().Reset();
  EXPECT_TRUE(device_b_->DeregMr(region).ok());
}

TEST_P(WindowsTest, AQpThatIsResetLeavesNoWindowOpenToItsNextPeer) {
  Window window(*b_);
  ASSERT_EQ(window.PostBind(1, 100), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk)));
  a_->ToState(IBV_QPS_RESET);
  b_->ToState(IBV_QPS_RESET);
  Connect(*a_, *b_);
  ASSERT_EQ(Write(2, 100, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(2, IBV_WC_REM_ACCESS_ERR)));
}

TEST_P(WindowsTest, AWindowMayMoveToAnotherQpOnceItIsFree) {
  QpHandle other_a = a_->AddQp();
  QpHandle other_b = b_->AddQp();
  ConnectQps(*a_, other_a.get(), *b_, other_b.get());
  Window window(*b_);
  ASSERT_EQ(window.PostBind(1, 100), 0);
  ASSERT_EQ(PostInvalidate(b_->qp(), 2, window.rkey()), 0);
  ASSERT_EQ(window.PostBind(3, 100, other_b.get()), 0);
  EXPECT_THAT(TakeB(), ElementsAre(Ended(1, kOk), Ended(2, kOk), Ended(3, kOk)));
  ASSERT_EQ(Write(4, 100, window.rkey()), 0);
  EXPECT_THAT(TakeA(), ElementsAre(Ended(4, IBV_WC_REM_ACCESS_ERR)));
}

TEST_P(WindowsTest, TheTableHoldsAsManyAsTheDeviceSaysAndUsesTheirKeysAgain) {
  std::vector<MwHandle> windows;
  while (true) {
    absl::StatusOr<ibv_mw*> mw = device_b_->AllocMw(b_->pd());
    if (!mw.ok()) break;
    windows.emplace_back(*device_b_, *mw);
  }
  // All but the one region's.
  EXPECT_EQ(windows.size(), static_cast<size_t>(device_b_->attributes().max_mw) - 1);
  const uint32_t key = windows.front()->rkey;
  windows.erase(windows.begin());
  MwHandle again(*device_b_, device_b_->AllocMw(b_->pd()).value());
  EXPECT_EQ(again->rkey >> 8, key >> 8);
  EXPECT_NE(again->rkey, key);
}

INSTANTIATE_TEST_SUITE_P(Ways, WindowsTest,
                         testing::Values(Ways{true, false}, Ways{true, true}, Ways{false, false},
                                         Ways{false, true}),
                         [](const testing::TestParamInfo<Ways>& info) {
                           return std::string(info.param.direct_copies ? "Direct" : "ByTarget") +
                                  (info.param.separate_cqs ? "TwoCqs" : "OneCq");
                         });

}  // namespace windows_test
}  // namespace verbena::internal::soft
