#include "benchmarks/floor/fan_wires.h"

#include <fmt/format.h>
#include <liburing.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "benchmarks/floor/patience.h"
#include "benchmarks/floor/tcp_pipe.h"

namespace verbena::benchmarks::internal {
namespace {

constexpr int kEvents = 32;
// More than there are connections, so that none waits for a buffer.
constexpr PolledRing::Buffers kBuffers = {.count = 512, .bytes = 4096};
constexpr std::uint64_t kCancelTag = UINT64_MAX;

}  // namespace

absl::StatusOr<EpollFan> EpollFan::Create(std::span<const int> fds) {
  EpollFan fan(fds, epoll_create1(EPOLL_CLOEXEC));
  if (fan.epoll_.fd() < 0) return FloorError("epoll_create1");
  for (std::size_t i = 0; i < fds.size(); ++i) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    if (epoll_ctl(fan.epoll_.fd(), EPOLL_CTL_ADD, fds[i], &event) != 0) {
      return FloorError("epoll_ctl");
    }
  }
  return fan;
}

absl::Status EpollFan::Poll(OnBytes on_bytes) {
  epoll_event events[kEvents];
  const int count = epoll_wait(epoll_.fd(), events, kEvents, 0);
  for (int i = 0; i < count; ++i) {
    const std::size_t index = events[i].data.u64;
    absl::StatusOr<std::size_t> got = ReceiveSome(fds_[index], in_.data(), in_.size());
    if (!got.ok()) return got.status();
    on_bytes(index, std::span<const char>(in_).first(*got));
  }
  return absl::OkStatus();
}

absl::StatusOr<RingFan> RingFan::Create(std::span<const int> fds) {
  absl::StatusOr<std::unique_ptr<PolledRing>> ring = PolledRing::Create(fds, kBuffers);
  if (!ring.ok()) return ring.status();
  for (std::size_t i = 0; i < fds.size(); ++i) {
    (*ring)->BeginMultishotReceive(static_cast<unsigned>(i), i);
  }
  return RingFan(*std::move(ring), fds.size());
}

RingFan::~RingFan() {
  if (ring_ == nullptr || receiving_ == 0) return;
  ring_->CancelAll(kCancelTag);
  Patience patience;
  while (receiving_ > 0 && patience.Spin()) {
    ring_->Poll([this](const io_uring_cqe& completion) {
      const bool ended = (completion.flags & IORING_CQE_F_MORE) == 0;
      if (completion.user_data != kCancelTag && ended) --receiving_;
    });
  }
}

absl::Status RingFan::Poll(OnBytes on_bytes) {
  absl::Status status;
  ring_->Poll([&](const io_uring_cqe& completion) {
    const std::uint64_t index = completion.user_data;
    if ((completion.flags & IORING_CQE_F_BUFFER) != 0) {
      const unsigned buffer = completion.flags >> IORING_CQE_BUFFER_SHIFT;
      if (completion.res > 0) {
        on_bytes(index, {ring_->buffer(buffer), static_cast<std::size_t>(completion.res)});
      }
      ring_->Provide(buffer);
    }
    if ((completion.flags & IORING_CQE_F_MORE) != 0) return;
    if (completion.res > 0 || completion.res == -ENOBUFS) {
      ring_->BeginMultishotReceive(static_cast<unsigned>(index), index);
      return;
    }
    --receiving_;
    status = absl::UnavailableError(
        fmt::format("connection {} of the floor: {}", index,
                    completion.res == 0 ? "it was closed" : std::strerror(-completion.res)));
  });
  return status;
}

}  // namespace verbena::benchmarks::internal
