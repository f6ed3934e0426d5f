#include "verbena/transport/connect/file_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace verbena::internal {
namespace {

// A request for the whole file.
struct flock WriteLock() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Take(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) {
    return absl::UnavailableError(fmt::format("open {}: {}", path, std::strerror(errno)));
  }
  FileLock lock(fd);
  struct flock wanted = WriteLock();
  if (::fcntl(fd, F_OFD_SETLK, &wanted) == 0) return lock;
  if (errno == EAGAIN || errno == EACCES) {
    return absl::AlreadyExistsError(fmt::format("{} is held", path));
  }
  return absl::UnavailableError(fmt::format("lock {}: {}", path, std::strerror(errno)));
}

void FileLock::Release() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool FileLock::IsHeld(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  struct flock lock = WriteLock();
  bool held = false;
  held = ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  return held;
}

}  // namespace verbena::internal
