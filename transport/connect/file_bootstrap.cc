#include "verbena/transport/connect/file_bootstrap.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/connect/file_lock.h"
#include "verbena/transport/connect/file_poller.h"
#include "verbena/transport/connect/file_spool.h"
#include "verbena/transport/connect/file_stream.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/mailbox.h"

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
    Log(LogLevel::kWarning,
        fmt::format("{} keeps clients waiting: {}", directory_, status.ToString()));
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
