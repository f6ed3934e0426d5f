// HeldPort: a port of 127.0.0.1 for a server that a test stops and starts again, or for none.
//
// No other program of the machine gets the port while no server listens there, so clients that try
// meanwhile reach nobody. Holds a socket that is bound and never listens, which keeps only servers
// away that take any port. Start the server at address().
//
//   HeldPort port;
//   auto server = Server::Start(*runtime, {&service}, {.address = port.address()});

#ifndef VERBENA_TESTS_SUPPORT_HELD_PORT_H_
#define VERBENA_TESTS_SUPPORT_HELD_PORT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace verbena {

class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_GE(fd_, 0);
    // Servers set it, too. So both may have the port, as only one of them listens.
    const int on = 1;
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = ntohs(address.sin_port);
    address_ = "127.0.0.1:" + std::to_string(port_);
  }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  ~HeldPort() { close(fd_); }

  // The socket, bound to the port.
  int fd() const { return fd_; }
  uint16_t port() const { return port_; }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  uint16_t port_ = 0;
  std::string address_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_HELD_PORT_H_
