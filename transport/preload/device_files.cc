// The device files that soft devices seem to have.
//
// UCX skips a device whose /dev/infiniband/<dev_name> it does not find or may not open. Such a file
// takes a kernel module or root, so stat() and access() themselves say that those of soft devices
// are there. They answer for /dev/null, a character device that every user may read and write. All
// other paths are left alone.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace verbena::internal::preload {
namespace {

// Callable in a signal handler, as what it stands before.
const char* Redirect(const char* path) {
  static constexpr char kPrefix[] = "/dev/infiniband/uverbs_soft";
  // The C library declares that `path` is not null, and reports EFAULT if it is.
  const char* volatile checked = path;
  const bool ours = checked != nullptr && std::strncmp(path, kPrefix, sizeof(kPrefix) - 1) == 0;
  return ours ? "/dev/null" : path;
}

}  // namespace
}  // namespace verbena::internal::preload

extern "C" {

int stat(const char* path, struct stat* status) noexcept {
  return fstatat(AT_FDCWD, verbena::internal::preload::Redirect(path), status, 0);
}

int access(const char* path, int mode) noexcept {
  return faccessat(AT_FDCWD, verbena::internal::preload::Redirect(path), mode, 0);
}

}  // extern "C"
