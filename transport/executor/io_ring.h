// IoRing: an executor's io_uring. Its Waiter sleeps in it, and file operations travel through it.
//
// Requests are collected with NextSqe() and handed to the kernel by one Submit() per turn, or by
// the system call that sleeps. Reap() looks at memory alone unless the kernel asks for a call.
// Owned by the IoUringWaiter; used on the executor's thread. Whoever starts operations must see
// them completed before the ring is destroyed.
//
// The kernel does not interrupt the thread for each completion, from Linux 5.19 on (COOP_TASKRUN):
// it sets a flag, which Reap() sees, and the next system call completes what is pending. The ring
// does not ask for SINGLE_ISSUER and DEFER_TASKRUN: such a ring completes nothing for a thread
// other than its first. An executor may be created, polled and destroyed by different threads of
// its host, and its destructor waits here for the operations that are under way.
//
//   io_uring_sqe* sqe = ring.NextSqe();
//   io_uring_prep_fsync(sqe, fd, 0);
//   IoRing::Bind(*sqe, operation);   // operation.OnComplete(result), in a later turn

#ifndef VERBENA_TRANSPORT_EXECUTOR_IO_RING_H_
#define VERBENA_TRANSPORT_EXECUTOR_IO_RING_H_

#include <liburing.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

// A request that the kernel has. It stays at its address until it is complete.
class RingOperation {
 public:
  virtual ~RingOperation() = default;
  // `result` is the system call's result, or -errno. May start other operations; must not resume
  // inline.
  virtual void OnComplete(int32_t result) = 0;
};

// Hears of the completions that belong to no RingOperation: the Waiter's own.
class RingListener {
 public:
  virtual ~RingListener() = default;
  virtual void OnTagged(uint64_t tag, int32_t result) = 0;
};

class IoRing {
 public:
  // (start) The requests that one submission carries, which also bounds file operations
  // (RingBackend). There is room for four times as many completions, so that the kernel never has
  // to keep any for us.
  static constexpr unsigned kEntries = 256;
  static constexpr unsigned kCompletions = 4 * kEntries;

  // Fails if the kernel forbids io_uring or is older than 5.11; the message says what would
  // mend it. The listener outlives the ring.
  static absl::StatusOr<std::unique_ptr<IoRing>> Create(RingListener& listener);
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;
  ~IoRing();

  // A request to fill in and bind. Submits the collected requests first if there are too many.
  io_uring_sqe* NextSqe();
  static void Bind(io_uring_sqe& sqe, RingOperation& operation) {
    io_uring_sqe_set_data64(&sqe, UserData(operation));
  }
  // A request whose completion says nothing.
  static void BindToNobody(io_uring_sqe& sqe) { io_uring_sqe_set_data64(&sqe, kNobody); }
  // A request of the listener's. `tag` is below 2^62.
  static void BindToTag(io_uring_sqe& sqe, uint64_t tag) {
    io_uring_sqe_set_data64(&sqe, UserDataOfTag(tag));
  }
  // How a later request (a cancellation) names an earlier one.
  static uint64_t UserData(RingOperation& operation) {
    return reinterpret_cast<uintptr_t>(&operation);
  }
  static uint64_t UserDataOfTag(uint64_t tag) {
    VERBENA_CHECK(tag >> 62 == 0) << tag;
    return kTagged | tag;
  }

  // Hands the collected requests to the kernel. Costs nothing if there are none.
  void Submit() {
    if (io_uring_sq_ready(&ring_) > 0) CheckEntered(io_uring_submit(&ring_));
  }
  // Submits, and sleeps until a request is complete or `timeout` (none if negative) has passed.
  void SubmitAndWait(Duration timeout);
  // Tells operations and the listener of their completions. Returns how many there were.
  int Reap();

  int fd() const { return ring_.ring_fd; }
  // Whether the kernel leaves the thread alone until it enters the kernel by itself.
  bool cooperative() const { return (ring_.flags & IORING_SETUP_COOP_TASKRUN) != 0; }
  // For registering files and buffers.
  io_uring* raw() { return &ring_; }

 private:
  // Addresses of user space have the top bit clear. (liburing keeps UINT64_MAX for itself.)
  static constexpr uint64_t kTagged = uint64_t{1} << 63;
  static constexpr uint64_t kNobody = UINT64_MAX - 1;

  explicit IoRing(RingListener& listener) : listener_(listener) {}
  absl::Status Open();
  // 0, or an errno.
  int Initialize(unsigned flags);
  // `result` is that of io_uring_enter, as liburing returns it. A timeout, a signal, and what the
  // kernel lacks at the moment pass. After any other failure nothing would ever complete.
  static void CheckEntered(int result);

  RingListener& listener_;
  io_uring ring_ = {};
  bool open_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_IO_RING_H_
