#include "verbena/transport/connect/file_bootstrap.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/file_spool.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/coro/mailbox.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// FilePoller: looks again and again for files that somebody waits for.
//
// A shared file system has no events that reach another host, so waiting means looking: every
// millisecond while there is news, then less and less often, down to once each kSlowest. It lives
// on an IoThread, and all of it belongs to that thread.
class FilePoller final : public IoObject, public std::enable_shared_from_this<FilePoller> {
 public:
  static constexpr auto kFastest = std::chrono::milliseconds(1);
  static constexpr auto kSlowest = std::chrono::milliseconds(100);

  class Watched {
   public:
    virtual ~Watched() = default;
    // True when there was news.
    virtual bool Look() = 0;
  };

  explicit FilePoller(IoThread& io) : timer_(io.context()) {}

  // Looks at `watched` soon, and again and again until Unwatch(). If it is watched already, looks
  // at it soon.
  void Watch(std::shared_ptr<Watched> watched);
  void Unwatch(const std::shared_ptr<Watched>& watched) { watched_.erase(watched); }

  void CloseOnThread() override;

 private:
  void Wait();
  void LookAtAll();

  boost::asio::steady_timer timer_;
  std::unordered_set<std::shared_ptr<Watched>> watched_;
  std::chrono::milliseconds delay_ = kFastest;
  bool waiting_ = false;
  bool closed_ = false;
};

// A FileSpool as a MessageStream.
//
// Two halves, as with TCP: FileConnection lives on the IoThread and makes the calls that block; the
// user holds the stream. They meet in mailboxes, so that awaits may be cancelled or destroyed while
// the thread works.

class FileConnection final : public IoObject,
                             public FilePoller::Watched,
                             public std::enable_shared_from_this<FileConnection> {
 public:
  // Says that a message was written.
  struct Sent {};

  // On the thread.
  static std::shared_ptr<FileConnection> Adopt(std::shared_ptr<IoThread> io,
                                               std::shared_ptr<FilePoller> poller, FileSpool spool,
                                               std::string peer);

  // For the executor. Start*() return at once; their results arrive in the mailbox.
  absl::StatusOr<std::shared_ptr<Mailbox<Sent>>> StartSend(std::string message);
  std::shared_ptr<Mailbox<std::string>> StartReceive();
  void Close();
  const std::string& peer() const { return peer_; }

  void CloseOnThread() override;
  bool Look() override;

 private:
  FileConnection(std::shared_ptr<IoThread> io, std::shared_ptr<FilePoller> poller, FileSpool spool,
                 std::string peer);

  const std::shared_ptr<IoThread> io_;
  const std::shared_ptr<FilePoller> poller_;
  const std::string peer_;
  const std::shared_ptr<Mailbox<std::string>> received_ = std::make_shared<Mailbox<std::string>>();
  std::atomic<bool> closed_ = false;

  // The rest belongs to the thread.
  FileSpool spool_;
  bool spool_closed_ = false;
};

// The user's half.
class FileStream final : public MessageStream {
 public:
  explicit FileStream(std::shared_ptr<FileConnection> connection);
  ~FileStream() override;

  Task<absl::Status> Send(std::string message) override;
  Task<absl::StatusOr<std::string>> Receive() override;
  void Close() override;
  const std::string& peer() const override;
  // One for all connections: each belongs to the user whose directory it is, and names no host.
  const std::string& source() const override;
  bool names_source() const override { return false; }

 private:
  const std::shared_ptr<FileConnection> connection_;
};

}  // namespace verbena::internal

namespace verbena {
namespace {

using StreamPtr = std::unique_ptr<MessageStream>;
using StreamOr = absl::StatusOr<StreamPtr>;
using Streams = internal::Mailbox<StreamPtr>;

constexpr size_t kMaxNameBytes = 128;
constexpr int kMaxListenersOfAName = 65536;

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
      name.find('/') == std::string::npos && name.find('\0') == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("\"{}\" cannot be a listener's name: 1 to {} bytes without '/', the first not a "
                  "dot",
                  name, kMaxNameBytes));
}

absl::Status Closed() { return absl::CancelledError("the listener was closed"); }

// On the IoThread: takes connections while somebody waits for one.
class FileAcceptor final : public internal::IoObject,
                           public internal::FilePoller::Watched,
                           public std::enable_shared_from_this<FileAcceptor> {
 public:
  FileAcceptor(std::shared_ptr<internal::IoThread> io, std::shared_ptr<internal::FilePoller> poller,
               std::string directory, internal::FileLock lock)
      : io_(std::move(io)),
        poller_(std::move(poller)),
        directory_(std::move(directory)),
        lock_(std::move(lock)) {}

  std::shared_ptr<Streams> StartAccept() {
    io_->Post([self = shared_from_this()] {
      if (!self->closed_ && !self->Look()) self->poller_->Watch(self);
    });
    return accepted_;
  }

  // Waits, so that the name is free when this returns; the thread blocks for the file system alone.
  void Close() {
    accepted_->Abort(Closed());
    auto closed = std::make_shared<std::promise<void>>();
    const bool posted = io_->Post([self = shared_from_this(), closed] {
      self->CloseOnThread();
      closed->set_value();
    });
    if (posted) closed->get_future().wait();
  }

  bool Look() override {
    if (!accepted_->empty()) return true;
    for (const std::string& connection : internal::UnclaimedConnections(directory_)) {
      absl::StatusOr<internal::FileSpool> spool = internal::FileSpool::Adopt(connection);
      if (!spool.ok()) {
        if (!absl::IsAlreadyExists(spool.status())) Complain(spool.status());
        continue;
      }
      std::string peer = spool->name();
      poller_->Unwatch(shared_from_this());
      accepted_->Push(std::make_unique<internal::FileStream>(
          internal::FileConnection::Adopt(io_, poller_, *std::move(spool), std::move(peer))));
      return true;
    }
    return false;
  }

  void CloseOnThread() override {
    if (std::exchange(closed_, true)) return;
    accepted_->Abort(Closed());
    poller_->Unwatch(shared_from_this());
    // Clients that nobody accepted see from the free lock that the listener is gone.
    lock_.Release();
    io_->Unregister(shared_from_this());
  }

 private:
  void Complain(const absl::Status& status) {
    if (std::exchange(complained_, true)) return;
    VERBENA_LOG_LINE(kConnect, kWarning,
                     fmt::format("{} keeps clients waiting: {}", directory_, status.ToString()),
                     {{"server", directory_}});
  }

  const std::shared_ptr<internal::IoThread> io_;
  const std::shared_ptr<internal::FilePoller> poller_;
  const std::string directory_;
  const std::shared_ptr<Streams> accepted_ = std::make_shared<Streams>();
  // The rest belongs to the thread.
  internal::FileLock lock_;
  bool closed_ = false;
  bool complained_ = false;
};

Task<StreamOr> AcceptFrom(std::shared_ptr<FileAcceptor> acceptor) {
  co_return co_await acceptor->StartAccept()->Pop();
}

class FileListener final : public MessageListener {
 public:
  FileListener(std::shared_ptr<FileAcceptor> acceptor, std::string address)
      : acceptor_(std::move(acceptor)), address_(std::move(address)) {}
  // NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
  ~FileListener() override { acceptor_->Close(); }

  VERBENA_CORO_WRAPPER Task<StreamOr> Accept() override { return AcceptFrom(acceptor_); }
  void Close() override { acceptor_->Close(); }
  const std::string& address() const override { return address_; }

 private:
  const std::shared_ptr<FileAcceptor> acceptor_;
  const std::string address_;
};

Task<StreamOr> ConnectTo(std::shared_ptr<internal::IoThread> io,
                         std::shared_ptr<internal::FilePoller> poller, std::string directory,
                         std::string target) {
  VERBENA_CO_RETURN_IF_ERROR(CheckName(target));
  auto connected = std::make_shared<Streams>();
  const bool posted = io->Post([io, poller, connected, directory, target] {
    absl::StatusOr<internal::FileSpool> spool =
        internal::FileSpool::Create(directory + "/" + target);
    if (!spool.ok()) return connected->Finish(spool.status());
    // If nobody waits for the stream any more, it is closed with the mailbox.
    connected->Push(std::make_unique<internal::FileStream>(
        internal::FileConnection::Adopt(io, poller, *std::move(spool), target)));
  });
  if (!posted) co_return absl::CancelledError("the bootstrap was closed");
  co_return co_await connected->Pop();
}

// The lock of a listener's directory, which is made if it is not there.
absl::StatusOr<internal::FileLock> TakeName(const std::string& directory, const std::string& name) {
  const std::string listener = directory + "/" + name;
  if (::mkdir(listener.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(fmt::format("mkdir {}: {}", listener, std::strerror(errno)));
  }
  VERBENA_RETURN_IF_ERROR(internal::CheckPrivateDirectory(listener));
  return internal::FileLock::Take(internal::ListenerLockPath(listener));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileBootstrap>> FileBootstrap::Create(const std::string& directory) {
  struct stat found = {};
  if (::stat(directory.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    return absl::NotFoundError(fmt::format("{} is not a directory", directory));
  }
  if (::access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    return absl::PermissionDeniedError(fmt::format("{}: {}", directory, std::strerror(errno)));
  }
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<internal::IoThread> io, internal::IoThread::Start());
  auto poller = std::make_shared<internal::FilePoller>(*io);
  io->Post([io, poller] { io->Register(poller); });
  return std::unique_ptr<FileBootstrap>(
      new FileBootstrap(directory, std::move(io), std::move(poller)));
}

FileBootstrap::FileBootstrap(std::string directory, std::shared_ptr<internal::IoThread> io,
                             std::shared_ptr<internal::FilePoller> poller)
    : directory_(std::move(directory)), io_(std::move(io)), poller_(std::move(poller)) {}

FileBootstrap::~FileBootstrap() { io_->Stop(); }

VERBENA_CORO_WRAPPER Task<StreamOr> FileBootstrap::Connect(std::string target) {
  return ConnectTo(io_, poller_, directory_, std::move(target));
}

absl::StatusOr<std::unique_ptr<MessageListener>> FileBootstrap::Listen(const std::string& address) {
  VERBENA_RETURN_IF_ERROR(CheckName(address));
  const bool any = address.ends_with(":0");
  const std::string stem = address.substr(0, address.size() - (any ? 1 : 0));
  for (int number = 1; number <= kMaxListenersOfAName; ++number) {
    const std::string name = any ? fmt::format("{}{}", stem, number) : address;
    absl::StatusOr<internal::FileLock> lock = TakeName(directory_, name);
    if (lock.ok()) {
      const std::string listener = directory_ + "/" + name;
      internal::SweepConnections(listener);
      return std::make_unique<FileListener>(
          std::make_shared<FileAcceptor>(io_, poller_, listener, *std::move(lock)), name);
    }
    if (!absl::IsAlreadyExists(lock.status())) return lock.status();
    if (!any) {
      return absl::FailedPreconditionError(
          fmt::format("{} is in use by a process that listens in {}", name, directory_));
    }
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} listeners of the name {} are in use", kMaxListenersOfAName, address));
}

}  // namespace verbena

namespace verbena::internal {

namespace fs = std::filesystem;

namespace {

Task<absl::Status> SendOn(std::shared_ptr<FileConnection> connection, std::string message) {
  VERBENA_CO_ASSIGN_OR_RETURN(auto sent, connection->StartSend(std::move(message)));
  co_return (co_await sent->Pop()).status();
}

Task<absl::StatusOr<std::string>> ReceiveOn(std::shared_ptr<FileConnection> connection) {
  co_return co_await connection->StartReceive()->Pop();
}

}  // namespace

void FilePoller::Watch(std::shared_ptr<Watched> watched) {
  if (closed_) return;
  watched_.insert(std::move(watched));
  delay_ = kFastest;
  // A long wait that is under way ends now.
  timer_.cancel();
  if (!waiting_) Wait();
}

void FilePoller::CloseOnThread() {
  closed_ = true;
  watched_.clear();
  timer_.cancel();
}

void FilePoller::Wait() {
  waiting_ = true;
  timer_.expires_after(delay_);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code&) {
    self->waiting_ = false;
    self->LookAtAll();
  });
}

void FilePoller::LookAtAll() {
  bool news = false;
  // A copy: what looks may stop watching itself.
  for (const auto& watched :
       std::vector<std::shared_ptr<Watched>>(watched_.begin(), watched_.end())) {
    news = watched->Look() || news;
  }
  delay_ = news ? kFastest : std::min<std::chrono::milliseconds>(2 * delay_, kSlowest);
  if (!closed_ && !watched_.empty() && !waiting_) Wait();
}

std::shared_ptr<FileConnection> FileConnection::Adopt(std::shared_ptr<IoThread> io,
                                                      std::shared_ptr<FilePoller> poller,
                                                      FileSpool spool, std::string peer) {
  std::shared_ptr<FileConnection> connection(
      new FileConnection(std::move(io), std::move(poller), std::move(spool), std::move(peer)));
  connection->io_->Register(connection);
  return connection;
}

FileConnection::FileConnection(std::shared_ptr<IoThread> io, std::shared_ptr<FilePoller> poller,
                               FileSpool spool, std::string peer)
    : io_(std::move(io)),
      poller_(std::move(poller)),
      peer_(std::move(peer)),
      spool_(std::move(spool)) {}

absl::StatusOr<std::shared_ptr<Mailbox<FileConnection::Sent>>> FileConnection::StartSend(
    std::string message) {
  VERBENA_RETURN_IF_ERROR(CheckBootstrapMessage(message.size()));
  if (closed_) return ClosedHere();
  auto sent = std::make_shared<Mailbox<Sent>>();
  const bool posted =
      io_->Post([self = shared_from_this(), sent, message = std::move(message)]() mutable {
        const absl::Status written =
            self->spool_closed_ ? ClosedHere() : self->spool_.Write(message);
        if (written.ok()) {
          sent->Push(Sent{});
        } else {
          sent->Finish(written);
        }
      });
  if (!posted) return ClosedHere();
  return sent;
}

std::shared_ptr<Mailbox<std::string>> FileConnection::StartReceive() {
  // When it is refused the thread is closing everything, and the mailbox ends by that.
  io_->Post([self = shared_from_this()] {
    if (!self->spool_closed_ && !self->Look()) self->poller_->Watch(self);
  });
  return received_;
}

bool FileConnection::Look() {
  // At most one message ahead of who reads.
  if (!received_->empty()) return true;
  absl::StatusOr<std::optional<std::string>> message = spool_.Read();
  if (message.ok() && !message->has_value()) return false;
  if (message.ok()) {
    received_->Push(**std::move(message));
  } else {
    received_->Finish(absl::Status(
        message.status().code(),
        fmt::format("receive from {}: {}", peer_, std::string(message.status().message()))));
  }
  poller_->Unwatch(shared_from_this());
  return true;
}

void FileConnection::Close() {
  if (closed_.exchange(true)) return;
  received_->Abort(ClosedHere());
  io_->Post([self = shared_from_this()] { self->CloseOnThread(); });
}

void FileConnection::CloseOnThread() {
  closed_ = true;
  received_->Abort(ClosedHere());
  poller_->Unwatch(shared_from_this());
  if (!std::exchange(spool_closed_, true)) spool_.Close();
  io_->Unregister(shared_from_this());
}

FileStream::FileStream(std::shared_ptr<FileConnection> connection)
    : connection_(std::move(connection)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
FileStream::~FileStream() { connection_->Close(); }

VERBENA_CORO_WRAPPER Task<absl::Status> FileStream::Send(std::string message) {
  return SendOn(connection_, std::move(message));
}

VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> FileStream::Receive() {
  return ReceiveOn(connection_);
}

void FileStream::Close() { connection_->Close(); }

const std::string& FileStream::peer() const { return connection_->peer(); }

const std::string& FileStream::source() const {
  static const auto* const source = new std::string("the shared directory");
  return *source;
}

}  // namespace verbena::internal
