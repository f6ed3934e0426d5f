#include "benchmarks/floor/polled_ring.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace verbena::benchmarks::internal {
namespace {

constexpr unsigned kEntries = 64;
constexpr std::uint16_t kGroup = 1;

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

}  // namespace

absl::StatusOr<std::unique_ptr<PolledRing>> PolledRing::Create(std::span<const int> fds,
                                                               const Buffers& buffers,
                                                               std::span<char> registered) {
  std::unique_ptr<PolledRing> ring(new PolledRing(buffers));
  if (absl::Status status = ring->Open(fds, registered); !status.ok()) return status;
  return ring;
}

absl::Status PolledRing::Open(std::span<const int> fds, std::span<char> registered) {
  io_uring_params parameters = {};
  parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE;
  // Each buffer can have a completion, and so can each request.
  parameters.cq_entries = 4 * (buffers_.count + kEntries);
  if (const int error = -io_uring_queue_init_params(kEntries, &ring_, &parameters); error != 0) {
    return Refused(error, "io_uring_queue_init");
  }
  open_ = true;
  // Not each kernel has it, and system calls are only a little slower without it.
  io_uring_register_ring_fd(&ring_);
  const int error = -io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size()));
  if (error > 0) return Refused(error, "io_uring_register_files");
  if (!registered.empty()) {
    const iovec memory{.iov_base = registered.data(), .iov_len = registered.size()};
    if (const int refusal = -io_uring_register_buffers(&ring_, &memory, 1); refusal > 0) {
      return Refused(refusal, "io_uring_register_buffers");
    }
  }
  return ProvideAll();
}

absl::Status PolledRing::ProvideAll() {
  void* const memory =
      mmap(nullptr, provided_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Refused(errno, "mmap");
  provided_ = static_cast<io_uring_buf_ring*>(memory);
  io_uring_buf_reg group = {};
  group.ring_addr = reinterpret_cast<std::uintptr_t>(memory);
  group.ring_entries = buffers_.count;
  group.bgid = kGroup;
  if (const int error = -io_uring_register_buf_ring(&ring_, &group, 0); error > 0) {
    return Refused(error, "io_uring_register_buf_ring");
  }
  io_uring_buf_ring_init(provided_);
  memory_ = std::make_unique<char[]>(buffers_.count * buffers_.bytes);
  for (unsigned i = 0; i < buffers_.count; ++i) Provide(i);
  return absl::OkStatus();
}

PolledRing::~PolledRing() {
  if (open_) io_uring_queue_exit(&ring_);
  if (provided_ != nullptr) munmap(provided_, provided_bytes());
}

void PolledRing::Provide(unsigned index) {
  io_uring_buf_ring_add(provided_, &memory_[index * buffers_.bytes],
                        static_cast<unsigned>(buffers_.bytes), static_cast<std::uint16_t>(index),
                        io_uring_buf_ring_mask(buffers_.count), 0);
  io_uring_buf_ring_advance(provided_, 1);
}

io_uring_sqe& PolledRing::NextSqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  while (sqe == nullptr) {
    io_uring_submit(&ring_);
    sqe = io_uring_get_sqe(&ring_);
  }
  return *sqe;
}

void PolledRing::BeginMultishotReceive(unsigned socket, std::uint64_t tag) {
  io_uring_sqe& sqe = NextSqe();
  io_uring_prep_recv_multishot(&sqe, static_cast<int>(socket), nullptr, 0, 0);
  sqe.flags |= IOSQE_BUFFER_SELECT;
  sqe.buf_group = kGroup;
  Bind(sqe, tag);
}

void PolledRing::CancelAll(std::uint64_t tag) {
  io_uring_sqe& sqe = NextSqe();
  io_uring_prep_cancel64(&sqe, 0, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
  io_uring_sqe_set_data64(&sqe, tag);
}

void PolledRing::Enter() {
  if (io_uring_sq_ready(&ring_) > 0) {
    io_uring_submit_and_get_events(&ring_);
  } else {
    io_uring_get_events(&ring_);
  }
}

}  // namespace verbena::benchmarks::internal
