// RawSharedPeer: a device at the other end of the shared-memory wire that says what a test makes it
// say, and copies when the test says so.
//
// The peer lives in the test's own process. So its process does not end: only its connections do.
// The device under test needs its engine's thread.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_RAW_SHARED_PEER_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_RAW_SHARED_PEER_H_

#include <sched.h>
#include <sys/eventfd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/shared_memory.h"

namespace verbena::internal::soft {

class RawSharedPeer {
 public:
  static constexpr uint32_t kQpn = 0x4321;

  // `number` tells the peers of one device apart. The address is like no other on this host.
  explicit RawSharedPeer(const DeviceAddress& device, uint8_t number = 0)
      : device_(device), address_(device) {
    address_.gid.raw[0] = 0xfc;
    address_.gid.raw[1] = number;
  }

  const DeviceAddress& address() const { return address_; }

  // A connection to the device, past the greetings of both.
  std::unique_ptr<ControlSocket> Greet() {
    auto socket = ControlSocket::Connect(device_).value();
    SayHello(*socket);
    ControlSocket::Received hello = Hear(*socket, ControlMessage::kHello);
    EXPECT_EQ(hello.descriptors.size(), 3u);
    device_tables_ = SharedRegion::Map(hello.descriptors[1].Release(), sizeof(DeviceTables),
                                       SharedRegion::Access::kReadOnly)
                         .value();
    // Answered only after our greeting was taken.
    Resolve(*socket, /*qpn=*/0);
    return socket;
  }
  void SayHello(ControlSocket& socket) { Claim(socket, address_.gid); }
  // Greets under an address that may be another's.
  void Claim(ControlSocket& socket, const ibv_gid& gid) { Introduce(socket, gid, doorbell_.get()); }
  // Greets, and says that writing to `doorbell` wakes it.
  void SayHelloWith(ControlSocket& socket, int doorbell) {
    Introduce(socket, address_.gid, doorbell);
  }
  // Opens the lane to the CQ through which the device's QP `qpn` receives. Returns once the device
  // has it.
  void OpenLane(ControlSocket& socket, uint32_t qpn) {
    const ControlMessage resolved = Resolve(socket, qpn);
    EXPECT_EQ(resolved.found, 1u);
    EXPECT_TRUE(socket
                    .Send({.kind = ControlMessage::kLane,
                           .receive_cq = resolved.receive_cq,
                           .lane = 1,
                           .request_lines = memory_.geometry().request_lines,
                           .answer_lines = memory_.geometry().answer_lines},
                          {memory_.fd()})
                    .ok());
    while (memory_.header().target_open.load() == 0) sched_yield();
  }
  static void BreakProtocol(ControlSocket& socket) { EXPECT_TRUE(socket.Send({.kind = 99}).ok()); }
  // Returns once the device has given us up.
  static void AwaitEnd(ControlSocket& socket) {
    absl::Status status;
    while (status.ok() || absl::IsUnavailable(status)) {
      status = socket.Receive().status();
      if (absl::IsUnavailable(status)) sched_yield();
    }
  }

  // As the device's tables say.
  bool IsInService(uint32_t qpn) const {
    const auto* tables = reinterpret_cast<const DeviceTables*>(device_tables_.data());
    return tables->qps[qpn & (kMaxQueuePairs - 1)].qpn.load() == qpn;
  }
  // Between the two calls the peer is in the middle of a copy, by any key.
  void BeginCopy() { ++memory_.header().copying; }
  void EndCopy() { ++memory_.header().copying; }
  bool copies() const { return memory_.header().copying.load() % 2 != 0; }

 private:
  void Introduce(ControlSocket& socket, const ibv_gid& gid, int doorbell) {
    EXPECT_TRUE(socket
                    .Send({.kind = ControlMessage::kHello, .gid = gid},
                          {controls_.fd(), tables_.fd(), doorbell})
                    .ok());
  }
  ControlMessage Resolve(ControlSocket& socket, uint32_t qpn) {
    EXPECT_TRUE(socket.Send({.kind = ControlMessage::kResolve, .request = 1, .qpn = qpn}).ok());
    return Hear(socket, ControlMessage::kResolved).message;
  }
  // The next message of that kind.
  static ControlSocket::Received Hear(ControlSocket& socket, uint32_t kind) {
    while (true) {
      auto received = socket.Receive();
      if (received.ok() && received->message.kind == kind) return *std::move(received);
      if (received.ok()) continue;
      if (!absl::IsUnavailable(received.status())) {
        ADD_FAILURE() << received.status();
        return {};
      }
      sched_yield();
    }
  }

  const DeviceAddress device_;
  DeviceAddress address_;
  const SharedRegion controls_ =
      SharedRegion::Create("raw-controls", sizeof(CqControl) * kMaxCompletionQueues).value();
  const SharedRegion tables_ = SharedRegion::Create("raw-tables", sizeof(DeviceTables)).value();
  const UniqueFd doorbell_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  LaneMemory memory_{SharedRegion::Create("raw-lane", BytesOf(LaneGeometry{})).value(),
                     LaneGeometry{}};
  SharedRegion device_tables_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_RAW_SHARED_PEER_H_
