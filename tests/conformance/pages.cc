#include "tests/conformance/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::conformance {
namespace {

// Returns -1 and sets errno on failure.
int SealedMemfd(uint64_t bytes) {
  const int fd = memfd_create("conformance", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

}  // namespace

absl::StatusOr<Pages> Pages::Allocate(Backing backing, uint64_t bytes) {
  const bool shared = backing == Backing::kShared;
  const int fd = shared ? SealedMemfd(bytes) : -1;
  if (shared && fd < 0) return ErrnoStatus(errno, "memfd_create");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (data == MAP_FAILED) return ErrnoStatus(error, "mmap");
  return Pages(static_cast<char*>(data), bytes);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace verbena::internal::conformance
