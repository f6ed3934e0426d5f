#include "verbena/transport/executor/io_uring_waiter.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "verbena/transport/device/verbs_status.h"

namespace verbena {
namespace {

constexpr unsigned kRingEntries = 64;
// user_data of requests whose completion says nothing (liburing keeps UINT64_MAX for itself).
constexpr uint64_t kNobody = UINT64_MAX - 1;

uint64_t UserData(size_t place, uint32_t generation) {
  return uint64_t{generation} << 32 | static_cast<uint32_t>(place);
}

__kernel_timespec ToKernelTimespec(Duration duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

}  // namespace

IoUringWaiter::IoUringWaiter(std::unique_ptr<EpollWaiter> nested) : nested_(std::move(nested)) {}

absl::StatusOr<std::unique_ptr<IoUringWaiter>> IoUringWaiter::Create() {
  absl::StatusOr<std::unique_ptr<EpollWaiter>> nested = EpollWaiter::Create();
  if (!nested.ok()) return nested.status();
  auto waiter = std::unique_ptr<IoUringWaiter>(new IoUringWaiter(*std::move(nested)));
  absl::Status opened = OpenRing(waiter->ring_);
  if (!opened.ok()) return opened;
  waiter->open_ = true;
  return waiter;
}

absl::Status IoUringWaiter::OpenRing(io_uring& ring) {
  const int error = -io_uring_queue_init(kRingEntries, &ring, /*flags=*/0);
  if (error != 0) {
    return ErrnoStatus(error,
                       "io_uring_queue_init (see sysctl kernel.io_uring_disabled, the container's "
                       "seccomp profile and RLIMIT_MEMLOCK)");
  }
  // Waiting with a timeout in one call, and no completion lost when the queue is full.
  constexpr unsigned kNeeded = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
  if ((ring.features & kNeeded) == kNeeded) return absl::OkStatus();
  io_uring_queue_exit(&ring);
  return absl::UnimplementedError("io_uring of this kernel is older than 5.11");
}

IoUringWaiter::~IoUringWaiter() {
  if (open_) io_uring_queue_exit(&ring_);
}

absl::Status IoUringWaiter::Watch(int fd, ReadableListener& listener) {
  absl::Status watched = nested_->Watch(fd, listener);
  if (!watched.ok()) return watched;
  auto place = std::ranges::find(places_, -1, &Place::fd);
  if (place == places_.end()) place = places_.emplace(place);
  place->fd = fd;
  place->polled = false;
  place->listener = &listener;
  return absl::OkStatus();
}

void IoUringWaiter::Unwatch(int fd) {
  nested_->Unwatch(fd);
  const auto place = std::ranges::find(places_, fd, &Place::fd);
  if (place == places_.end()) return;
  if (place->polled) {
    // Submitted now: a pending poll would keep the descriptor's file open.
    io_uring_sqe* sqe = NextSqe();
    io_uring_prep_poll_remove(sqe, UserData(place - places_.begin(), place->generation));
    io_uring_sqe_set_data64(sqe, kNobody);
    io_uring_submit(&ring_);
  }
  ++place->generation;
  place->fd = -1;
  place->listener = nullptr;
}

io_uring_sqe* IoUringWaiter::NextSqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  while (sqe == nullptr) {
    io_uring_submit(&ring_);
    sqe = io_uring_get_sqe(&ring_);
  }
  return sqe;
}

void IoUringWaiter::RequestPolls() {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.fd < 0 || place.polled) continue;
    io_uring_sqe* sqe = NextSqe();
    io_uring_prep_poll_add(sqe, place.fd, POLLIN);
    io_uring_sqe_set_data64(sqe, UserData(i, place.generation));
    place.polled = true;
  }
}

void IoUringWaiter::Wait(Duration timeout) {
  RequestPolls();
  __kernel_timespec limit = ToKernelTimespec(timeout);
  io_uring_cqe* first = nullptr;
  // A failure is a timeout or a signal: either way, what has completed is looked at.
  io_uring_submit_and_wait_timeout(&ring_, &first, 1, timeout == kForever ? nullptr : &limit,
                                   nullptr);
  // Copied out before the listeners run.
  constexpr unsigned kBatch = 16;
  io_uring_cqe* completions[kBatch];
  while (const unsigned count = io_uring_peek_batch_cqe(&ring_, completions, kBatch)) {
    std::pair<uint64_t, int32_t> copies[kBatch];
    for (unsigned i = 0; i < count; ++i) {
      copies[i] = {completions[i]->user_data, completions[i]->res};
    }
    io_uring_cq_advance(&ring_, count);
    for (unsigned i = 0; i < count; ++i) OnCompletion(copies[i].first, copies[i].second);
  }
}

void IoUringWaiter::OnCompletion(uint64_t user_data, int32_t result) {
  const size_t index = user_data & UINT32_MAX;
  if (user_data == kNobody || index >= places_.size()) return;
  Place& place = places_[index];
  if (place.generation != user_data >> 32) return;
  place.polled = false;
  // A cancelled poll (its thread has ended) is only asked for again.
  if (result > 0) place.listener->OnReadable();
}

}  // namespace verbena
