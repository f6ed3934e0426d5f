// A peer that was given up, or breaks the protocol, may still copy: what it is in the middle of is
// known until it has ended its connections, and its lanes are kept until then, but no longer.

#include <infiniband/verbs.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>

#include "gtest/gtest.h"
#include "tests/transport/soft/copying_peer.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/shared_memory.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace {

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

// A device of this process that says on its control connections what a test makes it say. So its
// process does not end: only its connections do.
class RawPeer {
 public:
  static constexpr uint32_t kQpn = 0x4321;

  explicit RawPeer(QpEnd& endpoint) : endpoint_(endpoint) { address_.gid.raw[0] = 0xfd; }

  const DeviceAddress& address() const { return address_; }

  // A connection past the greetings.
  std::unique_ptr<ControlSocket> Greet() {
    auto socket = ControlSocket::Connect({.gid = endpoint_.gid()}).value();
    EXPECT_TRUE(socket
                    ->Send({.kind = ControlMessage::kHello, .gid = address_.gid},
                           {controls_.fd(), tables_.fd(), doorbell_.get()})
                    .ok());
    return socket;
  }
  // Opens the lane to the endpoint's receive CQ. Returns once the device has it.
  void OpenLane(ControlSocket& socket) {
    const LaneGeometry geometry = memory_.geometry();
    EXPECT_TRUE(socket
                    .Send({.kind = ControlMessage::kLane,
                           .receive_cq = CqOf(endpoint_.cq()).id(),
                           .lane = 1,
                           .request_lines = geometry.request_lines,
                           .answer_lines = geometry.answer_lines},
                          {memory_.fd()})
                    .ok());
    while (header().target_open.load() == 0) sched_yield();
  }
  static void BreakProtocol(ControlSocket& socket) { EXPECT_TRUE(socket.Send({.kind = 99}).ok()); }
  // Returns once the device has given us up.
  static void AwaitEnd(ControlSocket& socket) {
    while (true) {
      const absl::Status status = socket.Receive().status();
      if (!status.ok() && !absl::IsUnavailable(status)) return;
      sched_yield();
    }
  }

  LaneHeader& header() { return memory_.header(); }
  void BeginCopy() { ++header().copying; }
  void EndCopy() { ++header().copying; }

 private:
  QpEnd& endpoint_;
  DeviceAddress address_{};
  const SharedRegion controls_ =
      SharedRegion::Create("raw-controls", sizeof(CqControl) * kMaxCompletionQueues).value();
  const SharedRegion tables_ = SharedRegion::Create("raw-tables", sizeof(DeviceTables)).value();
  const UniqueFd doorbell_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  LaneMemory memory_{SharedRegion::Create("raw-lane", BytesOf(LaneGeometry{})).value(),
                     LaneGeometry{}};
};

class LostPeerTest : public testing::Test {
 protected:
  LostPeerTest() : socket_(peer_.Greet()) {
    EXPECT_TRUE(endpoint_.ToInit(endpoint_.qp()).ok());
    EXPECT_TRUE(endpoint_.ToRtr(endpoint_.qp(), peer_.address().gid, RawPeer::kQpn, 0).ok());
    peer_.OpenLane(*socket_);
    peer_.BeginCopy();
  }

  bool Quiesced() { return device_->Quiesced(device_->IdentityOf(endpoint_.qp())); }

  const std::unique_ptr<SoftDevice> device_ = SoftDevice::Create().value();
  QpEnd endpoint_{*device_, {}};
  RawPeer peer_{endpoint_};
  std::unique_ptr<ControlSocket> socket_;
};

TEST_F(LostPeerTest, ItsLaneTellsOfItsCopiesUntilItHasEnded) {
  RawPeer::BreakProtocol(*socket_);
  RawPeer::AwaitEnd(*socket_);
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
  RawPeer::BreakProtocol(*socket_);
  RawPeer::AwaitEnd(*other);
  endpoint_.ToState(IBV_QPS_ERR);
  socket_.reset();
  // The device has seen the end of the first one when it has greeted a third.
  const std::unique_ptr<ControlSocket> later = peer_.Greet();
  while (absl::IsUnavailable(later->Receive().status())) sched_yield();
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

}  // namespace
}  // namespace verbena::internal::soft
