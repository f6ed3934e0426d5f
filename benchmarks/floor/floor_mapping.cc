#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "benchmarks/floor/floor_area.h"
#include "verbena/benchmarks/floor/floor.h"

namespace verbena::benchmarks {
namespace {

absl::Status ErrnoStatus(const char* call) {
  return absl::InternalError(fmt::format("{}: {}", call, std::strerror(errno)));
}

absl::StatusOr<internal::FloorArea*> Map(int fd) {
  // Populated at once: a slice must not pay for page faults.
  void* memory = mmap(nullptr, sizeof(internal::FloorArea), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return ErrnoStatus("mmap");
  return static_cast<internal::FloorArea*>(memory);
}

}  // namespace

absl::StatusOr<FloorMapping> FloorMapping::Create() {
  const int fd = memfd_create("verbena-floor", 0);
  if (fd < 0) return ErrnoStatus("memfd_create");
  FloorMapping mapping(fd, nullptr);
  if (ftruncate(fd, sizeof(internal::FloorArea)) != 0) return ErrnoStatus("ftruncate");
  absl::StatusOr<internal::FloorArea*> area = Map(fd);
  if (!area.ok()) return area.status();
  mapping.area_ = *area;
  mapping.area_->magic = internal::kFloorMagic;
  return mapping;
}

absl::StatusOr<FloorMapping> FloorMapping::Attach(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus("fstat");
  if (info.st_size != sizeof(internal::FloorArea)) {
    return absl::InvalidArgumentError(fmt::format("descriptor {} is no floor mapping", fd));
  }
  const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0) return ErrnoStatus("fcntl");
  FloorMapping mapping(duplicate, nullptr);
  absl::StatusOr<internal::FloorArea*> area = Map(duplicate);
  if (!area.ok()) return area.status();
  mapping.area_ = *area;
  if (mapping.area_->magic != internal::kFloorMagic) {
    return absl::InvalidArgumentError(fmt::format("descriptor {} is no floor mapping", fd));
  }
  return mapping;
}

FloorMapping::FloorMapping(FloorMapping&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), area_(std::exchange(other.area_, nullptr)) {}

FloorMapping& FloorMapping::operator=(FloorMapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(area_, other.area_);
  return *this;
}

FloorMapping::~FloorMapping() {
  if (area_ != nullptr) munmap(area_, sizeof(internal::FloorArea));
  if (fd_ >= 0) close(fd_);
}

}  // namespace verbena::benchmarks
