#include "verbena/transport/executor/io_uring_waiter.h"
#include "verbena/transport/base/status_macros.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace verbena::internal {
namespace {

// 30 bits of generation, since a tag has 62.
constexpr uint32_t kGenerationMask = (uint32_t{1} << 30) - 1;

uint64_t TagOf(size_t place, uint32_t generation) {
  return uint64_t{generation & kGenerationMask} << 32 | static_cast<uint32_t>(place);
}

}  // namespace

IoUringWaiter::IoUringWaiter(std::unique_ptr<EpollWaiter> nested) : nested_(std::move(nested)) {}

absl::StatusOr<std::unique_ptr<IoUringWaiter>> IoUringWaiter::Create() {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<EpollWaiter> nested, EpollWaiter::Create());
  auto waiter = std::unique_ptr<IoUringWaiter>(new IoUringWaiter(std::move(nested)));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<IoRing> ring, IoRing::Create(*waiter));
  waiter->ring_ = std::move(ring);
  return waiter;
}

absl::Status IoUringWaiter::Watch(int fd, ReadableListener& listener) {
  VERBENA_RETURN_IF_ERROR(nested_->Watch(fd, listener));
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
    io_uring_sqe* sqe = ring_->NextSqe();
    io_uring_prep_poll_remove(
        sqe, IoRing::UserDataOfTag(TagOf(place - places_.begin(), place->generation)));
    IoRing::BindToNobody(*sqe);
    ring_->Submit();
  }
  ++place->generation;
  place->fd = -1;
  place->listener = nullptr;
}

absl::StatusOr<IoRing*> IoUringWaiter::UseRing() {
  if (!ring_watched_) {
    VERBENA_RETURN_IF_ERROR(nested_->Watch(ring_->fd(), ring_listener_));
    ring_watched_ = true;
  }
  return ring_.get();
}

void IoUringWaiter::RequestPolls() {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.fd < 0 || place.polled) continue;
    io_uring_sqe* sqe = ring_->NextSqe();
    io_uring_prep_poll_add(sqe, place.fd, POLLIN);
    IoRing::BindToTag(*sqe, TagOf(i, place.generation));
    place.polled = true;
  }
}

void IoUringWaiter::Wait(Duration timeout) {
  RequestPolls();
  ring_->SubmitAndWait(timeout == kForever ? Duration(-1) : timeout);
  ring_->Reap();
}

void IoUringWaiter::OnTagged(uint64_t tag, int32_t result) {
  const size_t index = tag & UINT32_MAX;
  if (index >= places_.size()) return;
  Place& place = places_[index];
  if (TagOf(index, place.generation) != tag) return;
  place.polled = false;
  // A cancelled poll (its thread has ended) is only renewed.
  if (result > 0 && place.listener != nullptr) place.listener->OnReadable();
}

}  // namespace verbena::internal
