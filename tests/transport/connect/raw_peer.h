// RawPeer: a blocking TCP socket that speaks no protocol, for tests that send what no correct peer
// sends. Failures throw; so does a Read() that gets nothing for a minute.

#ifndef VERBENA_TESTS_TRANSPORT_CONNECT_RAW_PEER_H_
#define VERBENA_TESTS_TRANSPORT_CONNECT_RAW_PEER_H_

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

class RawPeer {
 public:
  // Connects to "127.0.0.1:port". `receive_bytes` bounds how many unread bytes the kernel keeps; 0
  // leaves the bound to the kernel.
  explicit RawPeer(const std::string& address, int receive_bytes = 0)
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
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;
  ~RawPeer() { Close(); }

  // The message behind its length, as streams carry it. Length() alone announces bytes that a test
  // may leave out.
  static std::string Framed(const std::string& message) {
    return Length(static_cast<uint32_t>(message.size())) + message;
  }
  static std::string Length(uint32_t bytes) {
    std::string length(4, '\0');
    for (size_t i = 0; i < 4; ++i) length[i] = static_cast<char>(bytes >> (8 * i));
    return length;
  }

  void Write(const std::string& bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count = send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (count <= 0) throw std::runtime_error("cannot write");
      done += static_cast<size_t>(count);
    }
  }

  // Reads until `limit` bytes have come or the stream ends; a reset ends it too.
  std::string Read(size_t limit) {
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

  // Ends the stream in this direction; the other direction stays open.
  void FinishWriting() { shutdown(fd_, SHUT_WR); }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Resets the connection, as the kernel does for a process that crashed with unread data.
  void Reset() {
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    Close();
  }

 private:
  int fd_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_CONNECT_RAW_PEER_H_
