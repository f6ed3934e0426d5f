// Bootstrapping through a directory that all hosts share: FileBootstrap and the parts of its
// connections.
//
// FileLock shows that a process lives, FilePoller looks for files, and FileSpool is one end of a
// connection. FileConnection works for its user's FileStream. The program owns the bootstrap, whose
// thread does all work on files.

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_BOOTSTRAP_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_BOOTSTRAP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/connect/bootstrap.h"

namespace verbena::internal {

class FilePoller;
class IoThread;

}  // namespace verbena::internal

namespace verbena {

// FileBootstrap: a bootstrap through a directory that all hosts share.
//
// For clusters whose control plane is a shared file system (a job's scratch directory on NFS, say)
// and where processes may not listen on TCP. A listener is a name in the directory; a connection is
// a directory below it, and a message a file (FileSpool). A message takes milliseconds, which
// delays nothing but connecting. A process that dies lets go of its locks, which ends its streams;
// a host that loses the file system's lock server is noticed by the links' PINGs instead.
//
// Other exchanges (a key-value store, say) are further implementations of Bootstrap.
//
//   VERBENA_ASSIGN_OR_RETURN(auto bootstrap, FileBootstrap::Create("/shared/job-17"));
//   Runtime::Start({.use_bootstrap = bootstrap.get()});
//   Server::Start(*runtime, {&store}, {.address = "store-0"});   // and Channel(runtime, "store-0")
class VERBENA_EXPORT FileBootstrap final : public Bootstrap {
 public:
  // NOT_FOUND or PERMISSION_DENIED if `directory` is not there, or this process may not write to
  // it.
  static absl::StatusOr<std::unique_ptr<FileBootstrap>> Create(const std::string& directory);
  // Streams and listeners end; their awaits return.
  ~FileBootstrap() override;

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override;
  // A name of at most 128 bytes without '/', which does not begin with a dot; one that ends in ":0"
  // gets a free number instead.
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override;

 private:
  FileBootstrap(std::string directory, std::shared_ptr<internal::IoThread> io,
                std::shared_ptr<internal::FilePoller> poller);

  const std::string directory_;
  const std::shared_ptr<internal::IoThread> io_;
  const std::shared_ptr<internal::FilePoller> poller_;
};

}  // namespace verbena

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

  // False also when there is no such file.
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

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_BOOTSTRAP_H_
