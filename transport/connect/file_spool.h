// A connection whose messages are files of a directory: FileSpool, one end of it; with FileLock,
// which shows that a process lives.
//
// A FileBootstrap's connections own them, on its thread.

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_SPOOL_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_SPOOL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

// FileLock: shows through a file that a process lives.
//
// An open file description lock (fcntl(2), F_OFD_SETLK), held for as long as the object exists: the
// kernel releases it when the process dies, however that comes, and NFS (version 4, and 3 with
// lockd) carries it between hosts. IsHeld() takes no lock, and so is in nobody's way. Any thread.
//
//   VERBENA_ASSIGN_OR_RETURN(FileLock alive, FileLock::Take(directory + "/alive"));
class VERBENA_EXPORT FileLock {
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

  // False also when there is no such file. True if the system has no descriptor or memory left to
  // look: whoever may hold it is not taken for dead.
  static bool IsHeld(const std::string& path);

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_;
};

// Messages of one end that the other has not read; one more is refused.
inline constexpr uint64_t kFileUnreadMessages = 64;

// FileSpool: one end of a connection whose messages are files of a directory.
//
//   <listener>/c-<token>/client.lock, server.lock   held while that end lives
//                        client.0, client.1, …      its messages, removed by their reader
//                        client.end                 it has closed
//
// A message is written under another name and renamed, so that nobody sees half of one. The
// directory goes away with its second end; what a crash leaves behind is swept by the next
// listener. Calls block for as long as the file system does. One thread.
//
// The listener's and the connection's directory must belong to this user and be writable for nobody
// else, and messages must be regular files. So another user of the host can neither read a
// handshake nor hold up the thread.
class VERBENA_EXPORT FileSpool {
 public:
  // The client's end: a new connection in the directory of a listener. UNAVAILABLE when nobody
  // listens there.
  static absl::StatusOr<FileSpool> Create(const std::string& listener);
  // The server's end of a connection that nobody has taken yet. ALREADY_EXISTS when somebody has.
  static absl::StatusOr<FileSpool> Adopt(const std::string& directory);

  FileSpool(FileSpool&&) = default;

  // RESOURCE_EXHAUSTED when kFileUnreadMessages wait; UNAVAILABLE when the other end is gone.
  absl::Status Write(const std::string& message);
  // The next message. nullopt if there is none now; UNAVAILABLE if there will be none.
  absl::StatusOr<std::optional<std::string>> Read();
  // Call it once at most.
  void Close();

  // The directory's own name, for logs.
  std::string name() const;

 private:
  FileSpool(std::string directory, const char* mine, const char* theirs, FileLock lock);

  std::string Path(const char* end, const std::string& what) const {
    return directory_ + "/" + end + "." + what;
  }
  bool PeerHasClosed() const;
  bool PeerIsDead() const;

  std::string directory_;
  const char* mine_;    // "client" or "server"
  const char* theirs_;  // the other
  FileLock lock_;
  uint64_t written_ = 0;
  uint64_t read_ = 0;
  bool closed_ = false;
};

// PERMISSION_DENIED unless `path` is a directory (not a link to one) of this user's, to which
// nobody else may write.
VERBENA_EXPORT absl::Status CheckPrivateDirectory(const std::string& path);

// Connections in a listener's directory that no server end has taken yet, in the order of their
// names.
VERBENA_EXPORT std::vector<std::string> UnclaimedConnections(const std::string& listener);

// Removes the connections of which neither end lives.
VERBENA_EXPORT void SweepConnections(const std::string& listener);

// The lock that the listener holds.
VERBENA_EXPORT std::string ListenerLockPath(const std::string& listener);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_SPOOL_H_
