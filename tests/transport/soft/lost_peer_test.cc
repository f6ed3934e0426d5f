// A peer that was given up, or breaks the protocol, may still copy: what it is in the middle of is
// known until it has ended its connections, and its lanes are kept until then, but no longer.

#include <infiniband/verbs.h>
#include <sched.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "gtest/gtest.h"
#include "tests/transport/soft/copying_peer.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_shared_peer.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace lost_peer_test {

CompletionQueue& CqOf(ibv_cq* cq) { return *static_cast<CompletionQueue*>(cq); }

// The in-lanes of the endpoint's receive CQ that are not over.
int Lanes(QpEnd& endpoint) {
  CompletionQueue& cq = CqOf(endpoint.cq());
  std::lock_guard<SpinLock> lock(cq.lock());
  cq.SweepLanes();
  int count = 0;
  cq.in_lanes().ForEach([&](InLane&) { ++count; });
  return count;
}

class LostPeerTest : public testing::Test {
 protected:
  LostPeerTest() : socket_(peer_.Greet()) {
    EXPECT_TRUE(endpoint_.ToInit(endpoint_.qp()).ok());
    EXPECT_TRUE(endpoint_.ToRtr(endpoint_.qp(), peer_.address().gid, RawSharedPeer::kQpn, 0).ok());
    peer_.OpenLane(*socket_, endpoint_.qp()->qp_num);
    peer_.BeginCopy();
  }

  bool Quiesced() { return device_->Quiesced(device_->IdentityOf(endpoint_.qp())); }

  const std::unique_ptr<SoftDevice> device_ = SoftDevice::Create().value();
  QpEnd endpoint_{*device_, {}};
  RawSharedPeer peer_{{.gid = endpoint_.gid()}};
  std::unique_ptr<ControlSocket> socket_;
};

TEST_F(LostPeerTest, ItsLaneTellsOfItsCopiesUntilItHasEnded) {
  RawSharedPeer::BreakProtocol(*socket_);
  RawSharedPeer::AwaitEnd(*socket_);
  EXPECT_EQ(Lanes(endpoint_), 1);
  endpoint_.ToState(IBV_QPS_ERR);
  EXPECT_FALSE(Quiesced());
  peer_.EndCopy();
  EXPECT_TRUE(Quiesced());
  EXPECT_EQ(Lanes(endpoint_), 1);
  socket_.reset();
  while (Lanes(endpoint_) != 0) sched_yield();
}

// As one that is killed, if the kernel does not tell of the end of its process.
TEST_F(LostPeerTest, TheEndOfItsConnectionIsTheEndOfItsCopies) {
  endpoint_.ToState(IBV_QPS_ERR);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(Quiesced());
  socket_.reset();
  while (!Quiesced()) sched_yield();
  EXPECT_TRUE(device_->DeregMr(endpoint_.mr()).ok());
  endpoint_.mr_handle().Release();
}

TEST_F(LostPeerTest, TheEndOfOneConnectionSaysNothingOfAnother) {
  const std::unique_ptr<ControlSocket> other = peer_.Greet();
  RawSharedPeer::BreakProtocol(*socket_);
  RawSharedPeer::AwaitEnd(*other);
  endpoint_.ToState(IBV_QPS_ERR);
  socket_.reset();
  // The device has seen the end of the first one when it has greeted a third.
  const std::unique_ptr<ControlSocket> later = peer_.Greet();
  EXPECT_FALSE(Quiesced());
  EXPECT_EQ(Lanes(endpoint_), 1);
}

TEST_F(LostPeerTest, ALaneThatItEndedItselfIsFreed) {
  peer_.EndCopy();
  EXPECT_EQ(Lanes(endpoint_), 1);
  EXPECT_TRUE(socket_->Send({.kind = ControlMessage::kCloseLane, .lane = 1}).ok());
  while (Lanes(endpoint_) != 0) sched_yield();
}

constexpr uint32_t kBytes = 4 << 20;

void WriteForever(Side& side) {
  auto device = SoftDevice::Create().value();
  QpEnd endpoint(*device, {.bytes = 2 * kBytes, .shared_arena = true});
  ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  const Address theirs = side.Connect(endpoint);
  EXPECT_NE(WriteUntilItFails(endpoint, theirs, kBytes), IBV_WC_SUCCESS);
  side.Signal();
}

// The lane is swept before the queue pair's receive side hears of the loss.
TEST(LostWriterTest, NothingLandsAfterQuiescedThoughItsLanesWereSwept) {
  Child child(WriteForever);
  auto device = SoftDevice::Create().value();
  QpEnd endpoint(*device, {.separate_cqs = true, .bytes = 2 * kBytes, .shared_arena = true});
  ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  child.side().Connect(endpoint);
  const QpIdentity qp = device->IdentityOf(endpoint.qp());
  FreezeInsideACopy(child, endpoint);
  {
    CompletionQueue& sends = CqOf(endpoint.send_cq());
    CompletionQueue& receives = CqOf(endpoint.cq());
    std::lock_guard<SpinLock> receives_lock(receives.lock());
    const Peer* peer = nullptr;
    receives.in_lanes().ForEach([&](InLane& lane) { peer = &lane.peer(); });
    ASSERT_NE(peer, nullptr);
    {
      std::lock_guard<SpinLock> sends_lock(sends.lock());
      sends.LosePeer(*peer);
    }
    receives.LosePeer(*peer);
    receives.SweepLanes();
  }
  endpoint.qp_handle().Reset();
  EXPECT_FALSE(device->Quiesced(qp));
  child.Continue();
  while (!device->Quiesced(qp)) sched_yield();
  std::memset(endpoint.receive_buffer(), 'o', kBytes);
  child.side().Await();
  child.Join();
  const std::string ours(kBytes, 'o');
  EXPECT_EQ(std::memcmp(endpoint.receive_buffer(), ours.data(), kBytes), 0);
}

}  // namespace lost_peer_test
}  // namespace verbena::internal::soft
