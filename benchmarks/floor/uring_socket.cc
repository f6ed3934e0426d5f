#include "benchmarks/floor/uring_socket.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "benchmarks/floor/patience.h"

namespace verbena::benchmarks::internal {
namespace {

constexpr unsigned kEntries = 8;
constexpr std::uint16_t kGroup = 1;

enum Tag : std::uint64_t { kSend, kReceive, kCancel };

absl::Status Refused(int error, const char* call) {
  const std::string said = fmt::format("{}: {}", call, std::strerror(error));
  switch (error) {
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(
          said + " (see sysctl kernel.io_uring_disabled and the container's seccomp profile)");
    case ENOSYS:
    case EINVAL:
      return absl::UnimplementedError(said + " (Linux 6.1 or later is needed)");
    case ENOMEM:
      return absl::ResourceExhaustedError(said + " (see RLIMIT_MEMLOCK)");
    default:
      return absl::InternalError(said);
  }
}

bool MayTryAgain(std::int32_t result) {
  return result == -EAGAIN || result == -EINTR || result == -ENOBUFS;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UringSocket>> UringSocket::Create(int fd,
                                                                 std::span<char> registered) {
  std::unique_ptr<UringSocket> socket(new UringSocket(registered));
  if (absl::Status status = socket->Open(fd); !status.ok()) return status;
  return socket;
}

absl::Status UringSocket::Open(int fd) {
  io_uring_params parameters = {};
  parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE;
  // Each buffer can have a completion, and so can what is sent.
  parameters.cq_entries = 4 * kBuffers;
  if (const int error = -io_uring_queue_init_params(kEntries, &ring_, &parameters); error != 0) {
    return Refused(error, "io_uring_queue_init");
  }
  open_ = true;
  // Not each kernel has it, and system calls are only a little slower without it.
  io_uring_register_ring_fd(&ring_);
  if (const int error = -io_uring_register_files(&ring_, &fd, 1); error > 0) {
    return Refused(error, "io_uring_register_files");
  }
  if (!registered_.empty()) {
    const iovec memory{.iov_base = registered_.data(), .iov_len = registered_.size()};
    if (const int error = -io_uring_register_buffers(&ring_, &memory, 1); error > 0) {
      return Refused(error, "io_uring_register_buffers");
    }
  }
  return ProvideBuffers();
}

absl::Status UringSocket::ProvideBuffers() {
  void* const memory = mmap(nullptr, kBuffers * sizeof(io_uring_buf), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Refused(errno, "mmap");
  provided_ = static_cast<io_uring_buf_ring*>(memory);
  io_uring_buf_reg group = {};
  group.ring_addr = reinterpret_cast<std::uintptr_t>(memory);
  group.ring_entries = kBuffers;
  group.bgid = kGroup;
  if (const int error = -io_uring_register_buf_ring(&ring_, &group, 0); error > 0) {
    return Refused(error, "io_uring_register_buf_ring");
  }
  io_uring_buf_ring_init(provided_);
  buffers_ = std::make_unique<char[]>(kBuffers * kBufferBytes);
  for (unsigned i = 0; i < kBuffers; ++i) Provide(i);
  return absl::OkStatus();
}

UringSocket::~UringSocket() {
  Stop();
  if (open_) io_uring_queue_exit(&ring_);
  if (provided_ != nullptr) munmap(provided_, kBuffers * sizeof(io_uring_buf));
}

void UringSocket::Provide(unsigned buffer) {
  io_uring_buf_ring_add(provided_, &buffers_[buffer * kBufferBytes], kBufferBytes,
                        static_cast<std::uint16_t>(buffer), io_uring_buf_ring_mask(kBuffers), 0);
  io_uring_buf_ring_advance(provided_, 1);
}

void UringSocket::Poll() {
  if (io_uring_sq_ready(&ring_) > 0) {
    io_uring_submit_and_get_events(&ring_);
  } else {
    io_uring_get_events(&ring_);
  }
  unsigned head;
  unsigned count = 0;
  io_uring_cqe* completion;
  io_uring_for_each_cqe(&ring_, head, completion) {
    OnCompletion(*completion);
    ++count;
  }
  io_uring_cq_advance(&ring_, count);
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
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    const std::greater_equal<> not_before;
    if (!registered_.empty() && not_before(data, registered_.data()) &&
        not_before(registered_.data() + registered_.size(), data + bytes)) {
      io_uring_prep_send_zc_fixed(sqe, 0, data, bytes, kFlags, 0, 0);
    } else {
      io_uring_prep_send(sqe, 0, data, bytes, kFlags);
    }
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, kSend);
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
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_recv(sqe, 0, data, bytes, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, kReceive);
    receive_.begun = true;
  }
  if (!receive_.complete) Poll();
  return TakeResult(receive_);
}

absl::StatusOr<std::span<const char>> UringSocket::Next() {
  if (std::exchange(lent_, false)) Provide(arrivals_[(taken_ - 1) % kBuffers].buffer);
  if (taken_ == arrived_) {
    // It has ended: for want of buffers, or for good.
    absl::StatusOr<std::size_t> ended = TakeResult(receive_);
    if (!ended.ok()) return ended.status();
    if (!receive_.begun) {
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      io_uring_prep_recv_multishot(sqe, 0, nullptr, 0, 0);
      sqe->flags |= IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT;
      sqe->buf_group = kGroup;
      io_uring_sqe_set_data64(sqe, kReceive);
      receive_.begun = true;
    }
    Poll();
    if (taken_ == arrived_) return std::span<const char>();
  }
  const Arrival& arrival = arrivals_[taken_++ % kBuffers];
  lent_ = true;
  return std::span<const char>(&buffers_[arrival.buffer * kBufferBytes], arrival.bytes);
}

void UringSocket::Stop() {
  if (!send_.pending() && !receive_.pending()) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
  io_uring_sqe_set_data64(sqe, kCancel);
  Patience patience;
  while ((send_.pending() || receive_.pending()) && patience.Spin()) Poll();
}

}  // namespace verbena::benchmarks::internal
