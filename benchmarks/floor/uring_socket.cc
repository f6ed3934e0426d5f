#include "benchmarks/floor/uring_socket.h"

#include <fmt/format.h>
#include <liburing.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "benchmarks/floor/patience.h"

namespace verbena::benchmarks::internal {
namespace {

constexpr std::size_t kBufferBytes = 65536;

enum Tag : std::uint64_t { kSend, kReceive, kCancel };

bool MayTryAgain(std::int32_t result) {
  return result == -EAGAIN || result == -EINTR || result == -ENOBUFS;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UringSocket>> UringSocket::Create(int fd,
                                                                 std::span<char> registered) {
  absl::StatusOr<std::unique_ptr<PolledRing>> ring = PolledRing::Create(
      std::span<const int>(&fd, 1), {.count = kBuffers, .bytes = kBufferBytes}, registered);
  if (!ring.ok()) return ring.status();
  return std::unique_ptr<UringSocket>(new UringSocket(*std::move(ring), registered));
}

void UringSocket::Poll() {
  ring_->Poll([this](const io_uring_cqe& completion) { OnCompletion(completion); });
}

void UringSocket::OnCompletion(const io_uring_cqe& completion) {
  const bool more = (completion.flags & IORING_CQE_F_MORE) != 0;
  if (completion.user_data == kSend) {
    if ((completion.flags & IORING_CQE_F_NOTIF) != 0) {
      --held_;
      return;
    }
    if (more) ++held_;
    send_.complete = true;
    send_.result = completion.res;
  } else if (completion.user_data == kReceive) {
    receive_.result = completion.res;
    if ((completion.flags & IORING_CQE_F_BUFFER) != 0 && completion.res > 0) {
      arrivals_[arrived_++ % kBuffers] = {.buffer = completion.flags >> IORING_CQE_BUFFER_SHIFT,
                                          .bytes = static_cast<std::size_t>(completion.res)};
      receive_.result = -EAGAIN;  // if it ended by this, it is begun again
    }
    receive_.complete = !more;
  }
}

absl::StatusOr<std::size_t> UringSocket::TakeResult(Operation& operation) {
  if (!operation.complete) return std::size_t{0};
  const std::int32_t result = std::exchange(operation, {}).result;
  if (result > 0) return static_cast<std::size_t>(result);
  if (result == 0) return absl::UnavailableError("the floor's connection was closed");
  if (MayTryAgain(result)) return std::size_t{0};
  return absl::UnavailableError(
      fmt::format("the io_uring of the floor: {}", std::strerror(-result)));
}

absl::StatusOr<std::size_t> UringSocket::Send(const char* data, std::size_t bytes) {
  if (!send_.begun) {
    constexpr int kFlags = MSG_NOSIGNAL | MSG_WAITALL;
    io_uring_sqe& sqe = ring_->NextSqe();
    const std::greater_equal<> not_before;
    if (!registered_.empty() && not_before(data, registered_.data()) &&
        not_before(registered_.data() + registered_.size(), data + bytes)) {
      io_uring_prep_send_zc_fixed(&sqe, 0, data, bytes, kFlags, 0, 0);
    } else {
      io_uring_prep_send(&sqe, 0, data, bytes, kFlags);
    }
    PolledRing::Bind(sqe, kSend);
    send_.begun = true;
  }
  if (!send_.complete) Poll();
  return TakeResult(send_);
}

std::size_t UringSocket::held() {
  if (held_ > 0) Poll();
  return held_;
}

absl::StatusOr<std::size_t> UringSocket::Receive(char* data, std::size_t bytes) {
  if (!receive_.begun) {
    io_uring_sqe& sqe = ring_->NextSqe();
    io_uring_prep_recv(&sqe, 0, data, bytes, 0);
    PolledRing::Bind(sqe, kReceive);
    receive_.begun = true;
  }
  if (!receive_.complete) Poll();
  return TakeResult(receive_);
}

absl::StatusOr<std::span<const char>> UringSocket::Next() {
  if (std::exchange(lent_, false)) ring_->Provide(arrivals_[(taken_ - 1) % kBuffers].buffer);
  if (taken_ == arrived_) {
    // The RECV has ended: for want of buffers, or for good.
    absl::StatusOr<std::size_t> ended = TakeResult(receive_);
    if (!ended.ok()) return ended.status();
    if (!receive_.begun) {
      ring_->BeginMultishotReceive(0, kReceive);
      receive_.begun = true;
    }
    Poll();
    if (taken_ == arrived_) return std::span<const char>();
  }
  const Arrival& arrival = arrivals_[taken_++ % kBuffers];
  lent_ = true;
  return std::span<const char>(ring_->buffer(arrival.buffer), arrival.bytes);
}

void UringSocket::Stop() {
  if (!send_.pending() && !receive_.pending()) return;
  ring_->CancelAll(kCancel);
  Patience patience;
  while ((send_.pending() || receive_.pending()) && patience.Spin()) Poll();
}

}  // namespace verbena::benchmarks::internal
