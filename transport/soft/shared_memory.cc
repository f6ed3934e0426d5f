#include "verbena/transport/soft/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::soft {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr size_t kHugePageBytes = size_t{2} << 20;
// MFD_HUGE_2MB of linux/memfd.h, which does not go with sys/mman.h.
constexpr unsigned kHugeTlb = MFD_HUGETLB | 21U << 26;

}  // namespace

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<SharedRegion> SharedRegion::Anonymous(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mmap of {} bytes", bytes));
  return SharedRegion(static_cast<std::byte*>(data), bytes, -1);
}

absl::StatusOr<SharedRegion> SharedRegion::Create(const std::string& name, size_t bytes) {
  return CreateWith(name, bytes, /*memfd_flags=*/0);
}

absl::StatusOr<SharedRegion> SharedRegion::CreateLarge(const std::string& name, size_t bytes) {
  if (bytes < kHugePageBytes) return Create(name, bytes);
  const size_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  // The mapping reserves its pages, so that none is found missing later.
  absl::StatusOr<SharedRegion> region = CreateWith(name, whole, kHugeTlb);
  return region.ok() ? std::move(region) : Create(name, whole);
}

absl::StatusOr<SharedRegion> SharedRegion::CreateWith(const std::string& name, size_t bytes,
                                                      unsigned memfd_flags) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_flags);
  if (fd < 0) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kSizeSeals) != 0) {
    absl::Status status =
        ErrnoStatus(errno, fmt::format("sizing and sealing a memfd of {} bytes", bytes));
    close(fd);
    return status;
  }
  return Map(fd, bytes, Access::kReadWrite);
}

absl::StatusOr<SharedRegion> SharedRegion::Map(int fd, size_t bytes, Access access) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat status;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    close(fd);
    return absl::InvalidArgumentError("the memory is not a memfd sealed against shrinking");
  }
  if (fstat(fd, &status) != 0 || status.st_size < 0 ||
      static_cast<size_t>(status.st_size) != bytes || bytes == 0) {
    close(fd);
    return absl::InvalidArgumentError(
        fmt::format("the memory has {} bytes where {} were announced", status.st_size, bytes));
  }
  const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    absl::Status failure = ErrnoStatus(errno, fmt::format("mmap of {} bytes", bytes));
    close(fd);
    return failure;
  }
  // Only advice; a region of huge pages needs none.
  if (bytes >= kHugePageBytes) madvise(data, bytes, MADV_HUGEPAGE);
  return SharedRegion(static_cast<std::byte*>(data), bytes, fd);
}

}  // namespace verbena::internal::soft
