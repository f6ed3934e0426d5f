#include "verbena/transport/connect/file_spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"

namespace verbena::internal {

namespace fs = std::filesystem;

namespace {

// A request for the whole file.
struct flock WriteLock() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

constexpr char kPrefix[] = "c-";
constexpr char kClient[] = "client";
constexpr char kServer[] = "server";

absl::Status FileError(const char* what, const std::string& path) {
  const int error = errno;
  const std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::Status WriteAll(int fd, const std::string& bytes, const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError("write", path);
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

// Creates the file with all of `bytes`, or does not create it.
absl::Status Publish(const std::string& directory, const std::string& name,
                     const std::string& bytes) {
  const std::string hidden = directory + "/." + name;
  const int fd = ::open(hidden.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("create", hidden);
  absl::Status written = WriteAll(fd, bytes, hidden);
  if (::close(fd) != 0 && written.ok()) written = FileError("close", hidden);
  if (written.ok() && ::rename(hidden.c_str(), (directory + "/" + name).c_str()) != 0) {
    written = FileError("rename", hidden);
  }
  if (!written.ok()) ::unlink(hidden.c_str());
  return written;
}

// Reads and removes a message; nullopt if there is no such file.
absl::StatusOr<std::optional<std::string>> Consume(const std::string& path) {
  // A FIFO that somebody put there must not hold up the thread, nor a link lead elsewhere.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) return FileError("open", path);
  struct stat found = {};
  if (::fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(fmt::format("{} is no regular file: remove it", path));
  }
  // One byte more than is allowed shows that there are more.
  std::string bytes(kMaxBootstrapMessageBytes + 1, '\0');
  size_t size = 0;
  absl::Status status;
  while (size < bytes.size()) {
    const ssize_t count = ::read(fd, bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) status = FileError("read", path);
    if (count <= 0) break;
    size += static_cast<size_t>(count);
  }
  ::close(fd);
  // The writer takes one that stays for one that nobody has read.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT && status.ok()) {
    status = FileError("remove", path);
  }
  if (status.ok()) status = CheckBootstrapMessage(size);
  VERBENA_RETURN_IF_ERROR(status);
  bytes.resize(size);
  return bytes;
}

std::vector<std::string> Connections(const std::string& listener) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(listener, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kPrefix)) found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void Remove(const std::string& directory) {
  std::error_code ignored;
  fs::remove_all(directory, ignored);
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
  if (fd < 0) return errno == EMFILE || errno == ENFILE || errno == ENOMEM;
  struct flock lock = WriteLock();
  const bool held = ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  ::close(fd);
  return held;
}

FileSpool::FileSpool(std::string directory, const char* mine, const char* theirs, FileLock lock)
    : directory_(std::move(directory)), mine_(mine), theirs_(theirs), lock_(std::move(lock)) {}

absl::Status CheckPrivateDirectory(const std::string& path) {
  struct stat found = {};
  if (::lstat(path.c_str(), &found) != 0) return FileError("stat", path);
  const bool ours = S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
                    (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (ours) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "{} has owner {} and mode {:o}, but must be a directory of user {} that nobody else may "
      "write to: remove it, or chmod 700",
      path, found.st_uid, found.st_mode & 07777u, ::geteuid()));
}

absl::StatusOr<FileSpool> FileSpool::Create(const std::string& listener) {
  if (!FileLock::IsHeld(ListenerLockPath(listener))) {
    return absl::UnavailableError(
        fmt::format("nobody listens at {}", fs::path(listener).filename().string()));
  }
  VERBENA_RETURN_IF_ERROR(CheckPrivateDirectory(listener));
  const std::string token = fmt::format("{:016x}", Random::Real().Next());
  const std::string hidden = listener + "/." + kPrefix + token;
  const std::string directory = listener + "/" + kPrefix + token;
  if (::mkdir(hidden.c_str(), 0700) != 0) return FileError("mkdir", hidden);
  absl::StatusOr<FileLock> lock = FileLock::Take(hidden + "/" + kClient + ".lock");
  // The name that listeners look for appears only once the lock in it is held.
  if (lock.ok() && ::rename(hidden.c_str(), directory.c_str()) == 0) {
    return FileSpool(directory, kClient, kServer, *std::move(lock));
  }
  absl::Status failed = lock.ok() ? FileError("rename", hidden) : lock.status();
  Remove(hidden);
  return failed;
}

absl::StatusOr<FileSpool> FileSpool::Adopt(const std::string& directory) {
  VERBENA_RETURN_IF_ERROR(CheckPrivateDirectory(directory));
  // The lock gets its name only once it is held: whoever finds it there and not held takes its
  // process for dead.
  const std::string path = directory + "/" + kServer + ".lock";
  const std::string hidden = directory + "/." + kServer + ".lock";
  VERBENA_ASSIGN_OR_RETURN(FileLock lock, FileLock::Take(hidden));
  if (::link(hidden.c_str(), path.c_str()) != 0) {
    return errno == EEXIST ? absl::AlreadyExistsError(fmt::format("{} is there", path))
                           : FileError("link", path);
  }
  ::unlink(hidden.c_str());
  return FileSpool(directory, kServer, kClient, std::move(lock));
}

std::string FileSpool::name() const { return fs::path(directory_).filename(); }

bool FileSpool::PeerHasClosed() const { return Exists(Path(theirs_, "end")); }

bool FileSpool::PeerIsDead() const {
  const std::string lock = Path(theirs_, "lock");
  if (Exists(lock)) return !FileLock::IsHeld(lock);
  // Before a server has taken the connection, its listener stands for it.
  const std::string listener = fs::path(directory_).parent_path();
  if (FileLock::IsHeld(ListenerLockPath(listener))) return false;
  // Unless it was taken meanwhile.
  return !FileLock::IsHeld(lock);
}

absl::Status FileSpool::Write(const std::string& message) {
  if (PeerHasClosed()) return absl::UnavailableError("the peer has closed the connection");
  if (PeerIsDead()) return absl::UnavailableError("the peer has died");
  if (written_ >= kFileUnreadMessages &&
      Exists(Path(mine_, fmt::format("{}", written_ - kFileUnreadMessages)))) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} messages wait in {}: the peer does not read", kFileUnreadMessages, directory_));
  }
  absl::Status written = Publish(directory_, fmt::format("{}.{}", mine_, written_), message);
  if (written.ok()) ++written_;
  return written;
}

absl::StatusOr<std::optional<std::string>> FileSpool::Read() {
  // Before the message is looked for, so that one sent just before the end is not missed.
  const bool closed = PeerHasClosed();
  const bool gone = closed || PeerIsDead();
  VERBENA_ASSIGN_OR_RETURN(std::optional<std::string> message,
                           Consume(Path(theirs_, fmt::format("{}", read_))));
  if (message.has_value()) {
    ++read_;
  } else if (gone) {
    return absl::UnavailableError(closed ? "the peer has closed the connection"
                                         : "the peer has died");
  }
  return message;
}

void FileSpool::Close() {
  VERBENA_CHECK(!std::exchange(closed_, true)) << directory_ << " is closed already";
  const bool last = PeerHasClosed() || PeerIsDead();
  if (last) {
    Remove(directory_);
  } else {
    // Best effort: without it the released lock tells the same, less kindly.
    (void)Publish(directory_, fmt::format("{}.end", mine_), "");
  }
  lock_.Release();
}

std::vector<std::string> UnclaimedConnections(const std::string& listener) {
  std::vector<std::string> found = Connections(listener);
  std::erase_if(found, [](const std::string& directory) {
    return Exists(directory + "/" + kServer + ".lock") ||
           Exists(directory + "/" + kServer + ".end");
  });
  return found;
}

void SweepConnections(const std::string& listener) {
  for (const std::string& directory : Connections(listener)) {
    if (!FileLock::IsHeld(directory + "/" + kClient + ".lock") &&
        !FileLock::IsHeld(directory + "/" + kServer + ".lock")) {
      Remove(directory);
    }
  }
}

std::string ListenerLockPath(const std::string& listener) { return listener + "/lock"; }

}  // namespace verbena::internal
