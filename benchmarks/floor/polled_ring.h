// PolledRing: an io_uring that is polled, with sockets and buffers that belong to it. Nobody sleeps
// in it.
//
// The kernel knows that one thread uses the ring (SINGLE_ISSUER, DEFER_TASKRUN), and the sockets
// and the ring itself are registered. The thread that
// creates it uses it and destroys it. The sockets are the caller's, and outlive it.

#ifndef VERBENA_BENCHMARKS_FLOOR_POLLED_RING_H_
#define VERBENA_BENCHMARKS_FLOOR_POLLED_RING_H_

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks::internal {

class PolledRing {
 public:
  // Buffers that multishot RECVs take in turn. Their number is a power of two.
  struct Buffers {
    unsigned count;
    std::size_t bytes;  // of each
  };

  // Sockets are named by their index in `fds`. `registered`, unless it is empty, is registered
  // buffer 0, and outlives the ring. PERMISSION_DENIED if io_uring is forbidden, UNIMPLEMENTED if
  // the kernel lacks a feature, RESOURCE_EXHAUSTED if it may not lock the memory.
  static absl::StatusOr<std::unique_ptr<PolledRing>> Create(std::span<const int> fds,
                                                            const Buffers& buffers,
                                                            std::span<char> registered = {});
  PolledRing(const PolledRing&) = delete;
  PolledRing& operator=(const PolledRing&) = delete;
  ~PolledRing();

  // A request to fill in; its socket is an index. Hands the kernel what was begun if there are too
  // many.
  io_uring_sqe& NextSqe();
  // After the request is filled in: its completion has this tag.
  static void Bind(io_uring_sqe& sqe, std::uint64_t tag) {
    sqe.flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(&sqe, tag);
  }
  void BeginMultishotReceive(unsigned socket, std::uint64_t tag);
  // Cancels all requests; each has its completion then.
  void CancelAll(std::uint64_t tag);

  // Hands the kernel what was begun, and calls `handle(completion)` for all that is complete,
  // without waiting. `handle` may begin requests.
  template <typename Handle>
  void Poll(Handle handle) {
    Enter();
    while (io_uring_cq_ready(&ring_) > 0) {
      io_uring_cqe* completion = nullptr;
      if (io_uring_peek_cqe(&ring_, &completion) != 0) return;
      const io_uring_cqe copy = *completion;
      io_uring_cq_advance(&ring_, 1);
      handle(copy);
    }
  }

  // The memory of a provided buffer that a completion names, until Provide() hands it back.
  const char* buffer(unsigned index) const { return &memory_[index * buffers_.bytes]; }
  void Provide(unsigned index);

 private:
  explicit PolledRing(const Buffers& buffers) : buffers_(buffers) {}
  absl::Status Open(std::span<const int> fds, std::span<char> registered);
  absl::Status ProvideAll();
  void Enter();
  std::size_t provided_bytes() const { return buffers_.count * sizeof(io_uring_buf); }

  const Buffers buffers_;
  io_uring ring_ = {};
  bool open_ = false;
  io_uring_buf_ring* provided_ = nullptr;
  std::unique_ptr<char[]> memory_;
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_POLLED_RING_H_
