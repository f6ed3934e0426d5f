// FileLock: shows through a file that a process lives.
//
// An open file description lock (fcntl(2), F_OFD_SETLK), held for as long as the object exists: the
// kernel releases it when the process dies, however that comes, and NFS (version 4, and 3 with
// lockd) carries it between hosts. Whoever looks whether it is held takes nothing, and so is in
// nobody's way. Any thread.
//
//   VERBENA_ASSIGN_OR_RETURN(FileLock alive, FileLock::Take(directory + "/alive"));

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_LOCK_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace verbena::internal {

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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_LOCK_H_
