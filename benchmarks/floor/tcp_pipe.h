// TcpPipe: bytes on their way out of, and into, a non-blocking TCP socket. The socket is its
// owner's. One thread.

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_PIPE_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_PIPE_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks::internal {

// Makes a connected socket non-blocking, without Nagle's delay.
absl::Status MakePollable(int fd);

// As many bytes as the socket takes, or has, at once; perhaps 0. UNAVAILABLE if the connection is
// lost.
absl::StatusOr<std::size_t> SendSome(int fd, const char* data, std::size_t bytes);
absl::StatusOr<std::size_t> ReceiveSome(int fd, char* data, std::size_t bytes);

class TcpPipe {
 public:
  explicit TcpPipe(int fd) : fd_(fd), in_(kBytes) {}

  // Copies bytes behind those that wait for Flush().
  void Append(const void* data, std::size_t bytes);
  // Sends what the socket takes.
  absl::Status Flush();

  // Receives what is there, by one system call, if there is room.
  absl::Status Receive();
  // The bytes that came and were not dropped.
  const char* data() const { return in_.data() + begin_; }
  std::size_t received() const { return end_ - begin_; }
  void Drop(std::size_t bytes) { begin_ += bytes; }

 private:
  // Holds the largest message of a floor.
  static constexpr std::size_t kBytes = std::size_t{256} << 10;

  const int fd_;
  std::vector<char> out_;
  std::size_t sent_ = 0;  // of out_
  std::vector<char> in_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_PIPE_H_
