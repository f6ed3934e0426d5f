// HeldAddress: an address of this host for a server that is killed and started again. Meanwhile no
// other program gets its port, and no client that tries to connect there becomes its own peer.
//
// Holds a socket that is bound and never listens. Servers bind the same port beside it.

#ifndef VERBENA_BENCHMARKS_LINKS_HELD_ADDRESS_H_
#define VERBENA_BENCHMARKS_LINKS_HELD_ADDRESS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "verbena/transport/base/check.h"

namespace verbena::benchmarks {

class HeldAddress {
 public:
  HeldAddress() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    VERBENA_CHECK(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                  bind(fd_, generic, bytes) == 0 && getsockname(fd_, generic, &bytes) == 0)
        << "holding a port: " << std::strerror(errno);
    text_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  HeldAddress(const HeldAddress&) = delete;
  HeldAddress& operator=(const HeldAddress&) = delete;
  ~HeldAddress() { close(fd_); }

  const std::string& text() const { return text_; }

 private:
  const int fd_;
  std::string text_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_HELD_ADDRESS_H_
