// Queues that are exchanged are heard no more, and an exchange that fails leaves the former ones in
// use. Each completion queue that was made is destroyed once.

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/device/raising_device.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/links.h"
#include "verbena/transport/link/receives.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace endpoint_queues_test {

constexpr LinkLimits kLimits = {.max_links = 4, .srq_depth = 128, .eager_bytes = 1024};

// Makes completion queues while the test says so.
class RefusingDevice final : public RaisingDevice {
 public:
  using RaisingDevice::RaisingDevice;
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* context, ibv_comp_channel* channel) override {
    if (!makes_cqs) return absl::ResourceExhaustedError("no completion queue is left");
    return RaisingDevice::CreateCq(entries, context, channel);
  }
  absl::Status DestroyCq(ibv_cq* cq) override {
    destroyed.push_back(cq);
    return RaisingDevice::DestroyCq(cq);
  }
  bool makes_cqs = true;
  std::vector<ibv_cq*> destroyed;
};

class NoCompletions final : public CompletionListener {
 public:
  void OnCompletions(const ibv_wc*, int) override { ADD_FAILURE() << "nothing was posted"; }
};

class EndpointQueuesTest : public testing::Test {
 protected:
  std::unique_ptr<ReceiveRing> NewRing() { return *EndpointQueues::NewRing(*context_, kLimits); }
  void Create() {
    ASSERT_TRUE(queues_.Create(NewRing()).ok());
    Subscribe();
  }
  void Subscribe() {
    queues_.Subscribe([this](ibv_event_type) { ++heard_; });
  }
  // How many events reach the subscriber when each queue of these is lost.
  int HeardOf(ibv_cq* cq, ibv_srq* srq) {
    heard_ = 0;
    device_.Raise(IBV_EVENT_CQ_ERR, cq);
    device_.Raise(IBV_EVENT_SRQ_ERR, srq);
    context_->PollEvents();
    for (int turn = 0; turn < 10; ++turn) executor_->Poll();
    return heard_;
  }
  void TearDown() override { queues_.Close(); }

  NoCompletions listener_;
  std::unique_ptr<Executor> executor_ = *Executor::Create();
  std::unique_ptr<SoftDevice> soft_ = *SoftDevice::Create({});
  RefusingDevice device_{*soft_};
  std::unique_ptr<DeviceContext> context_ =
      *DeviceContext::Create(device_, {.event_thread = false});
  LinkTable links_{kLimits.max_links};
  EndpointQueues queues_{*executor_, *context_, kLimits, 0, links_, listener_};
  int heard_ = 0;
};

TEST_F(EndpointQueuesTest, AnExchangeReplacesBothAndGivesTheFormerRingBack) {
  Create();
  ibv_cq* const former_cq = queues_.cq();
  ReceiveRing* const former_ring = &queues_.receives();
  queues_.MarkLost();
  std::unique_ptr<ReceiveRing> ring = NewRing();
  ReceiveRing* const new_ring = ring.get();
  ASSERT_TRUE(queues_.Exchange(ring).ok());
  EXPECT_EQ(ring.get(), former_ring);
  EXPECT_EQ(&queues_.receives(), new_ring);
  EXPECT_NE(queues_.cq(), former_cq);
  EXPECT_EQ(device_.destroyed, std::vector<ibv_cq*>{former_cq});
  EXPECT_EQ(queues_.number(), 1u);
  EXPECT_FALSE(queues_.are_lost());
}

TEST_F(EndpointQueuesTest, FormerQueuesAreHeardNoMoreAndNewOnesOnceSubscribed) {
  Create();
  ibv_cq* const former_cq = queues_.cq();
  EXPECT_EQ(HeardOf(former_cq, queues_.receives().srq()), 2);
  std::unique_ptr<ReceiveRing> ring = NewRing();
  ASSERT_TRUE(queues_.Exchange(ring).ok());
  EXPECT_EQ(HeardOf(former_cq, ring->srq()), 0);
  EXPECT_EQ(HeardOf(queues_.cq(), queues_.receives().srq()), 0);
  Subscribe();
  EXPECT_EQ(HeardOf(queues_.cq(), queues_.receives().srq()), 2);
}

TEST_F(EndpointQueuesTest, AFailedExchangeChangesNothing) {
  Create();
  ibv_cq* const cq = queues_.cq();
  ReceiveRing* const former_ring = &queues_.receives();
  queues_.MarkLost();
  std::unique_ptr<ReceiveRing> ring = NewRing();
  ReceiveRing* const new_ring = ring.get();
  device_.makes_cqs = false;
  EXPECT_EQ(queues_.Exchange(ring).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ring.get(), new_ring);
  EXPECT_EQ(&queues_.receives(), former_ring);
  EXPECT_EQ(queues_.cq(), cq);
  EXPECT_TRUE(device_.destroyed.empty());
  EXPECT_EQ(queues_.number(), 0u);
  EXPECT_TRUE(queues_.are_lost());
  EXPECT_EQ(HeardOf(cq, former_ring->srq()), 2);
}

TEST_F(EndpointQueuesTest, ReceivesThatAreTakenOutliveTheQueues) {
  Create();
  ibv_cq* const cq = queues_.cq();
  ReceiveRing* const ring = &queues_.receives();
  queues_.Unsubscribe();
  const std::unique_ptr<ReceiveRing> taken = queues_.TakeReceives();
  EXPECT_EQ(taken.get(), ring);
  EXPECT_EQ(device_.destroyed, std::vector<ibv_cq*>{cq});
  queues_.Close();
  EXPECT_EQ(device_.destroyed.size(), 1u);
}

TEST_F(EndpointQueuesTest, ClosesWithoutACompletionQueue) {
  device_.makes_cqs = false;
  EXPECT_EQ(queues_.Create(NewRing()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queues_.cq(), nullptr);
  queues_.Close();
  EXPECT_TRUE(device_.destroyed.empty());
}

}  // namespace endpoint_queues_test
}  // namespace verbena::internal
