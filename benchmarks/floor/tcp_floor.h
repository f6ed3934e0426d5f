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
//
// The same slices also run through io_uring, to compare it with system calls (TcpWay).

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_FLOOR_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_FLOOR_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/floor.h"

namespace verbena::benchmarks {

namespace internal {
struct TcpArea;
}

// How bytes go through the connection. Both sides poll, and use one io_uring each.
enum class TcpWay : std::uint32_t {
  kSockets,         // send() and recv(), of a payload from and to its place
  kUring,           // SEND; RECV of a payload to its place, multishot RECV of everything else
  kUringMultishot,  // SEND; multishot RECV, after which a payload is copied to its place
  kUringZeroCopy,   // the same as kUring, but payloads by SEND_ZC from a registered buffer
};

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

// Whether this process can run slices in this way. PERMISSION_DENIED if io_uring is forbidden,
// UNIMPLEMENTED if the kernel lacks a feature, RESOURCE_EXHAUSTED if it may not lock the memory of
// the payloads; the message says what would mend it.
absl::Status CheckTcpWay(TcpWay way, const CopySlice& slice);

// Answers one slice of any kind; returns when its client ends it. DeadlineExceeded if the client
// has done nothing for 10 s, DataLoss if a payload is wrong, Unavailable if the connection is lost,
// and the errors of CheckTcpWay(). Spins on the calling thread.
absl::Status ServeTcpSlice(TcpFloor& floor);

// Messages of `slice.size` bytes, `slice.outstanding` at a time, each answered by an equal one; the
// client compares every byte. Through an io_uring they are received by multishot RECV. Fails as
// ServeTcpSlice() does. Spins on the calling thread.
absl::StatusOr<FloorSample> RunTcpSlice(TcpFloor& floor, const FloorSlice& slice,
                                        TcpWay way = TcpWay::kSockets);

// Payloads, one behind the other as a plain stream. kToClient: each is asked for by 8 bytes.
// kToServer: each is acknowledged by 8 bytes. The side that receives a payload compares a stamp in
// each of its pages. Fails as ServeTcpSlice() does. Spins on the calling thread.
absl::StatusOr<CopySample> RunTcpCopySlice(TcpFloor& floor, const CopySlice& slice,
                                           TcpWay way = TcpWay::kSockets);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_FLOOR_H_
