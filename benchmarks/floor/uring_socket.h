// UringSocket: a connected TCP socket that is read and written through a PolledRing of its own. The
// socket is the caller's, and outlives it. One thread.

#ifndef VERBENA_BENCHMARKS_FLOOR_URING_SOCKET_H_
#define VERBENA_BENCHMARKS_FLOOR_URING_SOCKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "benchmarks/floor/polled_ring.h"

namespace verbena::benchmarks::internal {

class UringSocket {
 public:
  // Sends from `registered`, unless it is empty, are SEND_ZC with this registered buffer; it
  // outlives the UringSocket. Errors of PolledRing::Create().
  static absl::StatusOr<std::unique_ptr<UringSocket>> Create(int fd,
                                                             std::span<char> registered = {});
  UringSocket(const UringSocket&) = delete;
  UringSocket& operator=(const UringSocket&) = delete;
  ~UringSocket() { Stop(); }

  // Begins a SEND, or SEND_ZC, if none is under way. Returns its bytes once it is complete, until
  // then 0; the caller asks again with the same bytes, and keeps them. UNAVAILABLE if the
  // connection is lost.
  absl::StatusOr<std::size_t> Send(const char* data, std::size_t bytes);
  // The SEND_ZC that are complete, but whose memory the kernel may still read.
  std::size_t held();

  // The same as Send() with a RECV straight into `data`.
  absl::StatusOr<std::size_t> Receive(char* data, std::size_t bytes);
  // The bytes that a multishot RECV put into the next provided buffer; empty if none came. Valid
  // until the next call. A UringSocket takes calls either to this or to Receive().
  absl::StatusOr<std::span<const char>> Next();

  // Cancels what is under way. Then the kernel uses no memory of the caller's, except for SEND_ZC.
  // The destructor does the same.
  void Stop();

 private:
  static constexpr unsigned kBuffers = 32;

  // One that the kernel has, or that is complete and not reported to the caller.
  struct Operation {
    bool pending() const { return begun && !complete; }

    bool begun = false;
    bool complete = false;
    std::int32_t result = 0;
  };
  struct Arrival {
    unsigned buffer;
    std::size_t bytes;
  };

  UringSocket(std::unique_ptr<PolledRing> ring, std::span<char> registered)
      : registered_(registered), ring_(std::move(ring)) {}
  void Poll();
  void OnCompletion(const io_uring_cqe& completion);
  // Ends `operation` if it is complete, and returns its bytes; 0 otherwise.
  static absl::StatusOr<std::size_t> TakeResult(Operation& operation);

  const std::span<char> registered_;
  const std::unique_ptr<PolledRing> ring_;
  Operation send_;
  Operation receive_;
  std::size_t held_ = 0;
  std::array<Arrival, kBuffers> arrivals_ = {};  // a ring: each holds a buffer
  std::uint64_t arrived_ = 0;
  std::uint64_t taken_ = 0;
  bool lent_ = false;  // the last one that was taken
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_URING_SOCKET_H_
