// ConnectedPair: the two ends of a TCP connection over loopback.

#ifndef VERBENA_BENCHMARKS_FLOOR_SOCKET_PAIR_H_
#define VERBENA_BENCHMARKS_FLOOR_SOCKET_PAIR_H_

#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks::internal {

// A descriptor that closes itself. Move-only.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct SocketPair {
  Socket client;
  Socket server;
};

// Both ends are non-blocking, without Nagle's delay. UNAVAILABLE names the call that failed.
absl::StatusOr<SocketPair> ConnectedPair();

// UNAVAILABLE, with errno in words.
absl::Status FloorError(const char* what);

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_SOCKET_PAIR_H_
