// UringWire: the functions of a SocketWire over a UringSocket, which outlives it. One thread.

#ifndef VERBENA_BENCHMARKS_FLOOR_URING_WIRE_H_
#define VERBENA_BENCHMARKS_FLOOR_URING_WIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "absl/status/statusor.h"
#include "benchmarks/floor/uring_socket.h"

namespace verbena::benchmarks::internal {

class UringWire {
 public:
  // `buffers`: payloads are received into provided buffers, and copied to their place. Otherwise
  // they are received there.
  UringWire(UringSocket& socket, bool buffers) : socket_(socket), buffers_(buffers) {}

  absl::StatusOr<std::size_t> Send(const char* data, std::size_t bytes) {
    return socket_.Send(data, bytes);
  }
  absl::StatusOr<std::size_t> Receive(char* data, std::size_t bytes) {
    if (!buffers_) return socket_.Receive(data, bytes);
    if (came_.empty()) {
      absl::StatusOr<std::span<const char>> next = socket_.Next();
      if (!next.ok()) return next.status();
      came_ = *next;
    }
    const std::size_t taken = std::min(bytes, came_.size());
    if (taken > 0) std::memcpy(data, came_.data(), taken);
    came_ = came_.subspan(taken);
    return taken;
  }
  std::size_t held() { return socket_.held(); }

 private:
  UringSocket& socket_;
  const bool buffers_;
  std::span<const char> came_;  // in a provided buffer
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_URING_WIRE_H_
