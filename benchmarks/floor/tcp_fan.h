// The floor of many TCP connections that are busy at once: two processes that send messages back
// and forth, one at a time on each connection, and poll all connections together.
//
// By system calls (TcpWay::kSockets) a side asks an epoll which connections have something, and
// receives from each. Through io_uring (TcpWay::kUring) one ring receives for all of them, by
// multishot RECV into provided buffers. Both send by system calls, since an answer is due at once.
//
// A bench uses it as a TcpFloor: the connections are inherited, and slices alternate.
//
//   absl::StatusOr<TcpFan> fan = TcpFan::Create(64);
//   server: ServeTcpFanSlice(*fan);
//   client: RunTcpFanSlice(*fan, {.size = 32, .outstanding = 64}, TcpWay::kUring);

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_FAN_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_FAN_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/floor/tcp_floor.h"

namespace verbena::benchmarks {

// Move-only; each process uses it from one thread.
class TcpFan {
 public:
  static constexpr int kMaxConnections = 256;
  static constexpr int kMaxSize = 4096;  // of a message

  // 1 to kMaxConnections. Errors of sockets and mmap.
  static absl::StatusOr<TcpFan> Create(int connections);

  TcpFan(TcpFan&& other) noexcept
      : area_(std::exchange(other.area_, nullptr)),
        client_fds_(std::move(other.client_fds_)),
        server_fds_(std::move(other.server_fds_)) {}
  TcpFan& operator=(TcpFan&& other) = delete;
  ~TcpFan();

  internal::TcpArea& area() const { return *area_; }
  const std::vector<int>& client_fds() const { return client_fds_; }
  const std::vector<int>& server_fds() const { return server_fds_; }

 private:
  explicit TcpFan(internal::TcpArea* area) : area_(area) {}

  internal::TcpArea* area_;
  std::vector<int> client_fds_;
  std::vector<int> server_fds_;
};

// Answers one slice; returns when its client ends it. Fails as ServeTcpSlice() does. Spins on the
// calling thread.
absl::Status ServeTcpFanSlice(TcpFan& fan);

// Messages of `slice.size` bytes, at most TcpFan::kMaxSize, on each of `slice.outstanding`
// connections; the client compares every byte. INVALID_ARGUMENT for a slice out of range, and for
// another way than kSockets and kUring. Fails as ServeTcpFanSlice() does. Spins on the calling
// thread.
absl::StatusOr<FloorSample> RunTcpFanSlice(TcpFan& fan, const FloorSlice& slice, TcpWay way);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_FAN_H_
