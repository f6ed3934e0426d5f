// EpollFan and RingFan: the arrivals of many connections, by system calls and through one io_uring.
// The sockets are the caller's, and outlive them. One thread.

#ifndef VERBENA_BENCHMARKS_FLOOR_FAN_WIRES_H_
#define VERBENA_BENCHMARKS_FLOOR_FAN_WIRES_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/floor/polled_ring.h"
#include "benchmarks/floor/socket_pair.h"

namespace verbena::benchmarks::internal {

// Bytes that came over connection `index`.
using OnBytes = absl::FunctionRef<void(std::size_t index, std::span<const char> bytes)>;

class EpollFan {
 public:
  static absl::StatusOr<EpollFan> Create(std::span<const int> fds);

  // Looks once, without waiting. UNAVAILABLE if a connection is lost.
  absl::Status Poll(OnBytes on_bytes);

 private:
  EpollFan(std::span<const int> fds, int epoll) : fds_(fds.begin(), fds.end()), epoll_(epoll) {}

  std::vector<int> fds_;
  Socket epoll_;
  std::array<char, 16384> in_ = {};
};

class RingFan {
 public:
  // Errors of PolledRing::Create().
  static absl::StatusOr<RingFan> Create(std::span<const int> fds);
  RingFan(RingFan&& other) = default;
  RingFan& operator=(RingFan&& other) = delete;
  // Nothing that comes later is received.
  ~RingFan();

  absl::Status Poll(OnBytes on_bytes);

 private:
  RingFan(std::unique_ptr<PolledRing> ring, std::size_t connections)
      : ring_(std::move(ring)), receiving_(connections) {}

  std::unique_ptr<PolledRing> ring_;
  std::size_t receiving_;  // connections with a RECV under way
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_FAN_WIRES_H_
