// DeviceAddress: the name of a soft device: its GID, and the LID of its port. PeerAnswer and
// ConnectRequest: a QP that wants to reach one of the device of that name.
//
// A device without a TCP wire has a random GID and LID 0. One with a TCP wire has its IP address as
// GID and its TCP port as LID, so that the name says how to dial it, and several processes of one
// host have names of their own. A value.

#ifndef VERBENA_TRANSPORT_SOFT_ADDRESS_H_
#define VERBENA_TRANSPORT_SOFT_ADDRESS_H_

#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal::soft {

struct DeviceAddress {
  ibv_gid gid{};
  uint16_t lid = 0;

  // The GID as an IP address, which it is over TCP; the LID is the port then.
  IpAddress ip() const { return std::to_array(gid.raw); }
  SocketAddress tcp() const { return SocketAddress(ip(), lid); }

  // By the bytes of the GID, then by LID. Both ends of a TCP wire order devices in this way.
  friend std::strong_ordering operator<=>(const DeviceAddress& a, const DeviceAddress& b) {
    const int order = std::memcmp(a.gid.raw, b.gid.raw, sizeof(a.gid.raw));
    return order != 0 ? order <=> 0 : a.lid <=> b.lid;
  }
  friend bool operator==(const DeviceAddress& a, const DeviceAddress& b) {
    return a.lid == b.lid && a.gid.global.interface_id == b.gid.global.interface_id &&
           a.gid.global.subnet_prefix == b.gid.global.subnet_prefix;
  }
};

// As people write it: 10.0.0.7:4791 or [2001:db8::7]:4791 over TCP; otherwise the GID.
std::string AddressText(const DeviceAddress& address);

// A GID that no other device has: on this host while it runs, or, when `predictable`, in this
// process, and the same in every run that creates its devices in the same order. Any thread.
ibv_gid NewGid(bool predictable);

// PeerAnswer: what came of looking for the device that a QP is connected to. Any thread; the first
// word counts. The QP and the request that is under way own it together.
class PeerAnswer {
 public:
  void Found() { Tell(absl::OkStatus()); }
  // `why` is an error.
  void NotFound(const absl::Status& why) { Tell(why); }
  // OK, why the device was not found, or UNAVAILABLE if nobody knows after `patience`.
  absl::Status Await(std::chrono::milliseconds patience);

 private:
  void Tell(const absl::Status& what);

  std::mutex mutex_;
  std::condition_variable told_;
  std::optional<absl::Status> answer_;
};

// ConnectRequest: a QP of ours that wants to reach one of a peer's, over whichever wire. A value.
struct ConnectRequest {
  uint32_t qpn = 0;
  DeviceAddress address{};
  uint32_t remote_qpn = 0;
  std::shared_ptr<PeerAnswer> answer = nullptr;  // null: nobody asks

  void Found() const {
    if (answer != nullptr) answer->Found();
  }
  void NotFound(const absl::Status& why) const {
    if (answer != nullptr) answer->NotFound(why);
  }
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_ADDRESS_H_
