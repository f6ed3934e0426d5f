#include "tests/transport/soft/raw_tcp_peer.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal::soft {

RawSocket::RawSocket(uint16_t port, const char* from)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in own{};
  own.sin_family = AF_INET;
  EXPECT_EQ(inet_pton(AF_INET, from, &own.sin_addr), 1);
  EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const int yes = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  const timeval patience{.tv_sec = 15, .tv_usec = 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

bool RawSocket::Send(std::span<const std::byte> bytes) {
  return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

bool RawSocket::Receive(std::span<std::byte> bytes) {
  return recv(fd_.get(), bytes.data(), bytes.size(), MSG_WAITALL) ==
         static_cast<ssize_t>(bytes.size());
}

bool RawSocket::IsReadable() {
  pollfd ready{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) == 1;
}

bool RawSocket::IsClosed() {
  std::byte byte[4096];
  ssize_t got;
  while ((got = recv(fd_.get(), byte, sizeof(byte), 0)) > 0) {
  }
  return got == 0 || errno == ECONNRESET;
}

int RawSocket::Unread() {
  int bytes = 0;
  EXPECT_EQ(ioctl(fd_.get(), SIOCOUTQ, &bytes), 0);
  return bytes;
}

void RawSocket::Reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

RawTcpPeer::RawTcpPeer(Device& device, uint16_t lid)
    : port_(device.QueryPort(1)->lid), control_(port_) {
  address_.gid = *device.QueryGid(1, 0);
  address_.lid = lid;
  EXPECT_TRUE(control_.Send(Encode(Greeting(TcpGreeting::Kind::kControl))));
  std::array<std::byte, TcpGreeting::kBytes> answer;
  EXPECT_TRUE(control_.Receive(answer));
  const auto parsed = ParseGreeting(answer);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return;
  EXPECT_EQ(parsed->verdict, TcpGreeting::Verdict::kAccepted);
  secret_ = parsed->session;
}

TcpGreeting RawTcpPeer::Greeting(TcpGreeting::Kind kind) const {
  return {.kind = kind, .sender = address_, .session = secret_, .sender_cq = kCq};
}

TcpControl RawTcpPeer::Hear() {
  std::array<std::byte, TcpControl::kBytes> bytes;
  EXPECT_TRUE(control_.Receive(bytes));
  auto parsed = ParseControl(bytes);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(TcpControl{});
}

uint64_t RawTcpPeer::CqOf(uint32_t qpn) {
  EXPECT_TRUE(Say({.kind = TcpControl::Kind::kResolve, .qpn = qpn, .request = 7}));
  const TcpControl answer = Hear();
  EXPECT_EQ(answer.kind, TcpControl::Kind::kResolved);
  EXPECT_TRUE(answer.found);
  return answer.receiver_cq;
}

RawSocket RawTcpPeer::Lanes(uint64_t cq) {
  RawSocket lanes(port_);
  TcpGreeting greeting = Greeting(TcpGreeting::Kind::kLanes);
  greeting.receiver_cq = cq;
  EXPECT_TRUE(lanes.Send(Encode(greeting)));
  std::array<std::byte, TcpGreeting::kBytes> answer;
  EXPECT_TRUE(lanes.Receive(answer));
  const auto parsed = ParseGreeting(answer);
  EXPECT_TRUE(parsed.ok() && parsed->verdict == TcpGreeting::Verdict::kAccepted);
  return lanes;
}

RawSocket RawTcpPeer::ConnectLanes(QpEnd& endpoint) {
  Reconnect(endpoint);
  const TcpControl dial = Hear();
  EXPECT_EQ(dial.kind, TcpControl::Kind::kDial);
  return Lanes(dial.sender_cq);
}

void RawTcpPeer::Reconnect(QpEnd& endpoint) {
  EXPECT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  EXPECT_TRUE(endpoint.ToRtr(endpoint.qp(), address_.gid, kQpn, address_.lid).ok());
  EXPECT_TRUE(endpoint.ToRts(endpoint.qp()).ok());
  const TcpControl resolve = Hear();
  EXPECT_EQ(resolve.kind, TcpControl::Kind::kResolve);
  EXPECT_EQ(resolve.qpn, kQpn);
  EXPECT_TRUE(Say({.kind = TcpControl::Kind::kResolved,
                   .found = true,
                   .request = resolve.request,
                   .receiver_cq = kCq}));
}

std::vector<std::byte> ChunkOf(TcpChunk chunk, std::span<const RingLine> requests) {
  chunk.request_lines = static_cast<uint32_t>(requests.size());
  const auto header = Encode(chunk);
  std::vector<std::byte> bytes(header.begin(), header.end());
  const auto lines = std::as_bytes(requests);
  bytes.insert(bytes.end(), lines.begin(), lines.end());
  return bytes;
}

std::vector<RingLine> MessageOf(MessageHeader header, std::span<const std::byte> payload) {
  header.length = static_cast<uint16_t>(payload.size());
  std::vector<RingLine> lines(LinesOf(payload.size()));
  std::copy(payload.begin(), payload.end(),
            reinterpret_cast<std::byte*>(lines.data()) + kHeaderBytes);
  lines[0].route = header.Route();
  lines[0].control = header.Control();
  return lines;
}

}  // namespace verbena::internal::soft
