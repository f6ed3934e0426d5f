// The floor of calls and payloads over TCP: what two processes that only send and receive bytes on
// one TCP connection of this host can do, busy-polling it. No messages, no queues, no parsing.
//
// The connection is inherited: make the TcpFloor, then fork. The client runs slices. During a slice
// the server is in ServeTcpSlice and the client in RunTcpSlice (messages) or RunTcpCopySlice
// (payloads), and both spin. Between slices neither spins, so slices may alternate with slices of
// whatever the floor is compared with, on the same two cores.
//
//   absl::StatusOr<TcpFloor> floor = TcpFloor::Create();
//   server: ServeTcpSlice(*floor);
//   client: RunTcpSlice(*floor, {.size = 32, .outstanding = 1, .duration_ms = 100});

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_FLOOR_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_FLOOR_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/floor.h"

namespace verbena::benchmarks {

namespace internal {
struct TcpArea;
}

// A connection, and a few shared words by which slices begin and end. Move-only; each process uses
// it from one thread.
class TcpFloor {
 public:
  // Errors of sockets and mmap.
  static absl::StatusOr<TcpFloor> Create();

  TcpFloor(TcpFloor&& other) noexcept
      : area_(std::exchange(other.area_, nullptr)),
        client_fd_(std::exchange(other.client_fd_, -1)),
        server_fd_(std::exchange(other.server_fd_, -1)) {}
  TcpFloor& operator=(TcpFloor&& other) = delete;
  ~TcpFloor();

  internal::TcpArea& area() const { return *area_; }
  // The two ends: non-blocking, without Nagle's delay.
  int client_fd() const { return client_fd_; }
  int server_fd() const { return server_fd_; }

 private:
  TcpFloor(internal::TcpArea* area, int client_fd, int server_fd)
      : area_(area), client_fd_(client_fd), server_fd_(server_fd) {}

  internal::TcpArea* area_;
  int client_fd_;
  int server_fd_;
};

// Answers one slice of either kind; returns when its client ends it. DeadlineExceeded if the client
// has done nothing for 10 s, DataLoss if a payload is wrong, Unavailable if the connection is lost.
// Spins on the calling thread.
absl::Status ServeTcpSlice(TcpFloor& floor);

// Messages of `slice.size` bytes, `slice.outstanding` at a time, each answered by an equal one; the
// client compares every byte. Fails as ServeTcpSlice() does. Spins on the calling thread.
absl::StatusOr<FloorSample> RunTcpSlice(TcpFloor& floor, const FloorSlice& slice);

// Payloads, one behind the other as a plain stream. kToClient: each is asked for by 8 bytes.
// kToServer: each is acknowledged by 8 bytes. The side that receives a payload compares a stamp in
// each of its pages. Fails as ServeTcpSlice() does. Spins on the calling thread.
absl::StatusOr<CopySample> RunTcpCopySlice(TcpFloor& floor, const CopySlice& slice);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_FLOOR_H_
