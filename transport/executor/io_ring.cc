#include "verbena/transport/executor/io_ring.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

__kernel_timespec ToKernelTimespec(Duration duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoRing>> IoRing::Create(RingListener& listener) {
  auto ring = std::unique_ptr<IoRing>(new IoRing(listener));
  VERBENA_RETURN_IF_ERROR(ring->Open());
  return ring;
}

int IoRing::Initialize(unsigned flags) {
  io_uring_params parameters = {};
  parameters.flags = IORING_SETUP_CQSIZE | flags;
  parameters.cq_entries = kCompletions;
  return -io_uring_queue_init_params(kEntries, &ring_, &parameters);
}

absl::Status IoRing::Open() {
  int error = Initialize(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
  // Kernels before 5.19 refuse flags that they do not know.
  if (error == EINVAL) error = Initialize(0);
  if (error != 0) {
    return ErrnoStatus(error,
                       "io_uring_queue_init (see sysctl kernel.io_uring_disabled, the container's "
                       "seccomp profile and RLIMIT_MEMLOCK)");
  }
  open_ = true;
  // Waiting with a timeout in one call, and no completion lost when the queue is full.
  constexpr unsigned kNeeded = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
  if ((ring_.features & kNeeded) == kNeeded) return absl::OkStatus();
  return absl::UnimplementedError("io_uring of this kernel is older than 5.11");
}

IoRing::~IoRing() {
  if (open_) io_uring_queue_exit(&ring_);
}

io_uring_sqe* IoRing::NextSqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  while (sqe == nullptr) {
    CheckEntered(io_uring_submit(&ring_));
    sqe = io_uring_get_sqe(&ring_);
  }
  return sqe;
}

void IoRing::SubmitAndWait(Duration timeout) {
  __kernel_timespec limit = ToKernelTimespec(timeout);
  io_uring_cqe* first = nullptr;
  // What has completed is looked at after a failure that passes, too.
  CheckEntered(io_uring_submit_and_wait_timeout(
      &ring_, &first, 1, timeout < Duration::zero() ? nullptr : &limit, nullptr));
}

void IoRing::CheckEntered(int result) {
  VERBENA_CHECK(result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN ||
                result == -EBUSY || result == -ENOMEM)
      << "io_uring_enter: errno " << -result;
}

int IoRing::Reap() {
  constexpr unsigned kBatch = 16;
  io_uring_cqe* completions[kBatch];
  int reaped = 0;
  while (const unsigned count = io_uring_peek_batch_cqe(&ring_, completions, kBatch)) {
    // Copied out before anybody hears of a completion, because whoever hears of it may use the
    // ring.
    std::pair<uint64_t, int32_t> copies[kBatch];
    for (unsigned i = 0; i < count; ++i) {
      copies[i] = {completions[i]->user_data, completions[i]->res};
    }
    io_uring_cq_advance(&ring_, count);
    for (unsigned i = 0; i < count; ++i) {
      const auto [user_data, result] = copies[i];
      if (user_data == kNobody) continue;
      ++reaped;
      if ((user_data & kTagged) != 0) {
        listener_.OnTagged(user_data & ~kTagged, result);
      } else {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): io_uring hands out what it was handed.
        reinterpret_cast<RingOperation*>(user_data)->OnComplete(result);
      }
    }
    if (count < kBatch) break;
  }
  return reaped;
}

}  // namespace verbena::internal
