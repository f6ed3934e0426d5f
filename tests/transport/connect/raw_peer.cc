#include "tests/transport/connect/raw_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace verbena {

RawPeer::RawPeer(const std::string& address, int receive_bytes)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_bytes != 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  }
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string port = address.substr(address.rfind(':') + 1);
  target.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
  const timeval limit{60, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (connect(fd_, reinterpret_cast<sockaddr*>(&target), sizeof(target)) != 0) {
    throw std::runtime_error("cannot connect to " + address);
  }
}

std::string RawPeer::Framed(const std::string& message) {
  return Length(static_cast<uint32_t>(message.size())) + message;
}

std::string RawPeer::Length(uint32_t bytes) {
  std::string length(4, '\0');
  for (size_t i = 0; i < 4; ++i) length[i] = static_cast<char>(bytes >> (8 * i));
  return length;
}

void RawPeer::Write(const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (count <= 0) throw std::runtime_error("cannot write");
    done += static_cast<size_t>(count);
  }
}

std::string RawPeer::Read(size_t limit) {
  std::string bytes(limit, '\0');
  size_t done = 0;
  while (done < limit) {
    const ssize_t count = recv(fd_, bytes.data() + done, limit - done, 0);
    if (count < 0 && errno == EAGAIN) throw std::runtime_error("nothing to read for a minute");
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

void RawPeer::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void RawPeer::Reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

}  // namespace verbena
