// FileLock: shows through a file that a process lives.
//
// Held by flock(2) for as long as the object exists, so that the kernel releases it when the
// process dies, however that comes; NFS (version 4, and 3 with lockd) carries it between hosts. Any
// thread.

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_LOCK_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace verbena {

class FileLock {
 public:
  // Creates the file if it is not there. ALREADY_EXISTS when somebody holds it.
  static absl::StatusOr<FileLock> Take(const std::string& path);

  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock() { Release(); }

  void Release();

  // False also when there is no such file.
  static bool IsHeld(const std::string& path);

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_LOCK_H_
