// A peer in the middle of a copy through a memory window delays only the window's invalidation or
// deallocation, and writes nothing once that is complete.

#include <sched.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/transport/soft/copying_peer.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"
#include "tests/transport/soft/window.h"

namespace verbena::internal::soft {
namespace late_writer_test {

constexpr uint32_t kLarge = 4 << 20;

struct Process {
  explicit Process(bool separate_cqs = false)
      : device(SoftDevice::Create().value()),
        endpoint(*device, {.separate_cqs = separate_cqs,
                           .with_channel = true,
                           .bytes = 2 * kLarge,
                           .shared_arena = true,
                           .access = kAccess}) {
    EXPECT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  }

  std::unique_ptr<SoftDevice> device;
  QpEnd endpoint;
};

// Writes all of the other side's window with 'w', over and over, until that fails.
void WriteForever(Side& side) {
  Process process;
  QpEnd& endpoint = process.endpoint;
  Address theirs = side.Connect(endpoint);
  // Not known before there is a QP to bind the window to.
  theirs.rkey = side.Exchange({}).rkey;
  EXPECT_NE(WriteUntilItFails(endpoint, theirs, kLarge), IBV_WC_SUCCESS);
  side.Signal();
}

class FrozenWriterTest : public testing::TestWithParam<bool> {
 protected:
  FrozenWriterTest() : child_(WriteForever), process_(GetParam()) {
    Side side = child_.side();
    side.Connect(endpoint());
    window_ = std::make_unique<Window>(endpoint());
    EXPECT_EQ(window_->PostBind(1, kLarge), 0);
    EXPECT_EQ(AwaitByPolling(endpoint().send_cq()).status, IBV_WC_SUCCESS);
    side.Exchange({.gid = {}, .qpn = 0, .rkey = window_->rkey(), .receive_buffer = 0});
  }

  QpEnd& endpoint() { return process_.endpoint; }
  void ExpectNothingLandsAnyMore() {
    std::memset(endpoint().receive_buffer(), 'o', kLarge);
    child_.Continue();
    child_.side().Await();
    child_.Join();
    const std::string ours(kLarge, 'o');
    EXPECT_EQ(std::memcmp(endpoint().receive_buffer(), ours.data(), kLarge), 0);
  }

  Child child_;
  Process process_;
  std::unique_ptr<Window> window_;
};

TEST_P(FrozenWriterTest, HoldsUpTheInvalidationOfItsWindowAlone) {
  Window other(endpoint());
  ASSERT_EQ(other.PostBind(2, kLarge), 0);
  ASSERT_EQ(AwaitByPolling(endpoint().send_cq()).status, IBV_WC_SUCCESS);
  FreezeInsideACopy(child_, endpoint());
  // A window without a copy under way is invalidated at once.
  ASSERT_EQ(PostInvalidate(endpoint().qp(), 3, other.rkey()), 0);
  ASSERT_EQ(AwaitByPolling(endpoint().send_cq()).wr_id, 3u);
  ASSERT_EQ(PostInvalidate(endpoint().qp(), 4, window_->rkey()), 0);
  ibv_wc wc;
  for (int i = 0; i < 10000; ++i) ASSERT_EQ(ibv_poll_cq(endpoint().send_cq(), 1, &wc), 0);
  child_.Continue();
  wc = AwaitByPolling(endpoint().send_cq());
  EXPECT_EQ(wc.wr_id, 4u);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
  ExpectNothingLandsAnyMore();
}

TEST_P(FrozenWriterTest, HoldsUpNeitherTheErrorStateNorTheQpsEnd) {
  FreezeInsideACopy(child_, endpoint());
  ASSERT_EQ(PostInvalidate(endpoint().qp(), 4, window_->rkey()), 0);
  const QpIdentity qp = process_.device->IdentityOf(endpoint().qp());
  endpoint().ToState(IBV_QPS_ERR);
  const ibv_wc wc = AwaitByPolling(endpoint().send_cq());
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  // The window is given back at once; its memory is quarantined.
  window_->Reset();
  endpoint().qp_handle().Reset();
  EXPECT_FALSE(process_.device->Quiesced(qp));
  child_.Continue();
  while (!process_.device->Quiesced(qp)) sched_yield();
  ExpectNothingLandsAnyMore();
}

TEST_P(FrozenWriterTest, HoldsUpTheDeallocationOfItsWindow) {
  FreezeInsideACopy(child_, endpoint());
  EXPECT_EQ(process_.device->DeallocMw(window_->get()).code(),
            absl::StatusCode::kFailedPrecondition);
  child_.Continue();
  // Each attempt gives a writer that is slow to go on two seconds.
  absl::Status freed;
  for (int attempt = 0; attempt < 10; ++attempt) {
    freed = process_.device->DeallocMw(window_->get());
    if (!absl::IsFailedPrecondition(freed)) break;
  }
  ASSERT_TRUE(freed.ok()) << freed;
  window_->Release();
  ExpectNothingLandsAnyMore();
}

INSTANTIATE_TEST_SUITE_P(Cqs, FrozenWriterTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return std::string(info.param ? "Two" : "One");
                         });

struct RaceOptions {
  bool direct_copies;
  bool separate_cqs;
};

class RacingWriterTest : public testing::TestWithParam<RaceOptions> {};

TEST_P(RacingWriterTest, WritesNothingOnceTheInvalidationIsComplete) {
  constexpr uint32_t kBytes = 1 << 20;
  const SoftDeviceOptions options{.direct_copies = GetParam().direct_copies};
  auto device_a = SoftDevice::Create(options).value();
  auto device_b = SoftDevice::Create(options).value();
  for (uint32_t round = 0; round < 30; ++round) {
    const QpEndOptions endpoint{
        .separate_cqs = GetParam().separate_cqs, .bytes = 2 * kBytes, .access = kAccess};
    QpEnd a(*device_a, endpoint);
    QpEnd b(*device_b, endpoint);
    Connect(a, b);
    Window window(b);
    ASSERT_EQ(window.PostBind(1, kBytes), 0);
    ASSERT_EQ(AwaitByPolling(b.send_cq()).status, IBV_WC_SUCCESS);
    std::memset(a.send_buffer(), 'w', kBytes);
    std::atomic<uint32_t> written{0};
    std::thread writer([&] {
      ibv_wc_status status = IBV_WC_SUCCESS;
      while (status == IBV_WC_SUCCESS) {
        ASSERT_EQ(a.PostOneSided(IBV_WR_RDMA_WRITE, 0, a.SendSge(0, kBytes),
                                 reinterpret_cast<uint64_t>(b.receive_buffer()), window.rkey()),
                  0);
        status = AwaitByPolling(a.send_cq()).status;
        ++written;
      }
    });
    while (written.load() <= round % 3) sched_yield();
    const QpIdentity qp = device_b->IdentityOf(b.qp());
    ASSERT_EQ(PostInvalidate(b.qp(), 2, window.rkey()), 0);
    const ibv_wc wc = AwaitByPolling(b.send_cq());
    EXPECT_EQ(wc.wr_id, 2u);
    // The writer fails the QP, and may do so before we know that it is out.
    while (wc.status != IBV_WC_SUCCESS && !device_b->Quiesced(qp)) sched_yield();
    std::memset(b.receive_buffer(), 'o', kBytes);
    writer.join();
    const std::string ours(kBytes, 'o');
    ASSERT_EQ(std::memcmp(b.receive_buffer(), ours.data(), kBytes), 0) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, RacingWriterTest,
                         testing::Values(RaceOptions{true, false}, RaceOptions{true, true},
                                         RaceOptions{false, false}, RaceOptions{false, true}),
                         [](const testing::TestParamInfo<RaceOptions>& info) {
                           return std::string(info.param.direct_copies ? "Direct" : "ByTarget") +
                                  (info.param.separate_cqs ? "TwoCqs" : "OneCq");
                         });

}  // namespace late_writer_test
}  // namespace verbena::internal::soft
