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

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_SPOOL_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_SPOOL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/file_lock.h"

namespace verbena::internal {

// Messages of one end that the other has not read; one more is refused.
inline constexpr uint64_t kFileUnreadMessages = 64;

class FileSpool {
 public:
  // The client's end: a new connection in the directory of a listener. UNAVAILABLE when nobody
  // listens there.
  static absl::StatusOr<FileSpool> Create(const std::string& listener);
  // The server's end of a connection that nobody has taken yet. ALREADY_EXISTS when somebody has.
  static absl::StatusOr<FileSpool> Adopt(const std::string& directory);

  FileSpool(FileSpool&&) = default;

  // RESOURCE_EXHAUSTED when kFileUnreadMessages wait; UNAVAILABLE when the other end is gone.
  absl::Status Write(const std::string& message);
  // nullopt when there is none now; UNAVAILABLE when there will be none.
  absl::StatusOr<std::optional<std::string>> Read();
  // No more than once.
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
absl::Status CheckPrivateDirectory(const std::string& path);

// Connections in a listener's directory that no server end has taken yet, in the order of their
// names.
std::vector<std::string> UnclaimedConnections(const std::string& listener);

// Removes the connections of which neither end lives.
void SweepConnections(const std::string& listener);

// The lock that the listener holds.
std::string ListenerLockPath(const std::string& listener);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_SPOOL_H_
