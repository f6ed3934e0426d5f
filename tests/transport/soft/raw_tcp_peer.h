// RawTcpPeer: a device at the other end of the TCP wire that says what a test makes it say.
//
// A test dials a device by it, as a peer does, and speaks the bytes of WIRE.md. Each wait is
// bounded: a side that says nothing for 15 seconds fails the test.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_RAW_TCP_PEER_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_RAW_TCP_PEER_H_

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {

// A blocking TCP connection to a port of this host. `from`: a loopback address, each of which is a
// source of its own.
class RawSocket {
 public:
  explicit RawSocket(uint16_t port, const char* from = "127.0.0.1");

  // False once the other side has closed.
  bool Send(std::span<const std::byte> bytes);
  // False when the other side closes before `bytes` are there.
  bool Receive(std::span<std::byte> bytes);
  // True when there is something to receive, or the other side has closed.
  bool IsReadable();
  // Reads on until the other side closes.
  bool IsClosed();
  // Bytes that were sent, and that the other side's host has not taken yet.
  int Unread();
  void Close() { fd_ = UniqueFd(); }
  // Ends it for other threads, too.
  void Shutdown() { shutdown(fd_.get(), SHUT_RDWR); }
  // Closes by a reset.
  void Reset();

 private:
  UniqueFd fd_;
};

class RawTcpPeer {
 public:
  static constexpr uint64_t kCq = 1025;  // of ours, as we say
  static constexpr uint32_t kQpn = 0x4321;

  // Opens a control connection to `device` under an address of `lid`, by default one that nobody
  // listens on.
  explicit RawTcpPeer(Device& device, uint16_t lid = 1);

  const DeviceAddress& address() const { return address_; }
  uint64_t secret() const { return secret_; }
  uint16_t port() const { return port_; }
  RawSocket& control() { return control_; }

  TcpGreeting Greeting(TcpGreeting::Kind kind) const;

  bool Say(const TcpControl& message) { return control_.Send(Encode(message)); }
  TcpControl Hear();

  // The CQ through which the device's QP `qpn` receives.
  uint64_t CqOf(uint32_t qpn);

  // Opens the lanes between our CQ and theirs.
  RawSocket Lanes(uint64_t cq);

  // Connects the endpoint's QP to our kQpn, and returns the lanes of both, which are up.
  RawSocket ConnectLanes(QpEnd& endpoint);

  // Connects the endpoint's QP to our kQpn. Over lanes that are up, if there are any.
  void Reconnect(QpEnd& endpoint);

 private:
  uint16_t port_;
  RawSocket control_;
  DeviceAddress address_;
  uint64_t secret_ = 77;
};

// The bytes of a chunk with `lines` of the request ring.
std::vector<std::byte> ChunkOf(TcpChunk chunk, std::span<const RingLine> requests);

// The lines of one message.
std::vector<RingLine> MessageOf(MessageHeader header, std::span<const std::byte> payload);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_RAW_TCP_PEER_H_
