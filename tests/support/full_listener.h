// FullListener: an address of this host that is silent: whoever connects to it gets no answer.
//
// The queue of this listener is full, so the kernel drops further attempts to connect.
//
//   FullListener silent("127.0.0.2", port);

#ifndef VERBENA_TESTS_SUPPORT_FULL_LISTENER_H_
#define VERBENA_TESTS_SUPPORT_FULL_LISTENER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace verbena {

class FullListener {
 public:
  // `ip` is an IPv4 address of this host; port 0: any that is free.
  explicit FullListener(const char* ip = "127.0.0.1", uint16_t port = 0)
      : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        first_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET, ip, &where.sin_addr), 1);
    socklen_t bytes = sizeof(where);
    auto* const address = reinterpret_cast<sockaddr*>(&where);
    const int on = 1;
    EXPECT_EQ(setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    EXPECT_EQ(bind(listener_, address, bytes), 0);
    EXPECT_EQ(listen(listener_, 0), 0);
    EXPECT_EQ(getsockname(listener_, address, &bytes), 0);
    EXPECT_EQ(connect(first_, address, bytes), 0);
    // The queue is full once the listener has heard that it is connected.
    pollfd waits{.fd = listener_, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&waits, 1, 10000), 1);
    port_ = ntohs(where.sin_port);
    address_ = std::string(ip) + ":" + std::to_string(port_);
  }
  ~FullListener() {
    close(first_);
    close(listener_);
  }
  FullListener(const FullListener&) = delete;
  FullListener& operator=(const FullListener&) = delete;

  uint16_t port() const { return port_; }
  const std::string& address() const { return address_; }

 private:
  const int listener_;
  const int first_;
  uint16_t port_ = 0;
  std::string address_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_FULL_LISTENER_H_
