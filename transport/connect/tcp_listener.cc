#include "verbena/transport/connect/tcp_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/host_port.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/tcp_socket.h"
#include "verbena/transport/connect/tcp_stream.h"

namespace verbena::internal {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using StreamOr = absl::StatusOr<std::unique_ptr<MessageStream>>;

// How long an acceptor without descriptors waits: long enough not to spin, short for a client.
constexpr auto kRetryDelay = std::chrono::milliseconds(100);

// The most connections that are shed before the acceptor waits again, so that a flood does not keep
// the thread.
constexpr size_t kShedAtOnce = 64;

absl::Status Closed() { return absl::CancelledError("the listener was closed"); }

tcp FamilyOf(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  return address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4();
}

Task<StreamOr> AcceptFrom(std::shared_ptr<TcpAcceptor> acceptor) {
  co_return co_await acceptor->StartAccept()->Pop();
}

}  // namespace

TcpAcceptor::TcpAcceptor(std::shared_ptr<IoThread> io)
    : io_(std::move(io)), acceptor_(io_->context()), retry_(io_->context()) {
  Reserve();
}

TcpAcceptor::~TcpAcceptor() { ReleaseReserve(); }

absl::StatusOr<std::shared_ptr<TcpAcceptor>> TcpAcceptor::Adopt(std::shared_ptr<IoThread> io,
                                                                int fd) {
  std::shared_ptr<TcpAcceptor> acceptor(new TcpAcceptor(std::move(io)));
  error_code error;
  acceptor->acceptor_.assign(FamilyOf(fd), fd, error);
  if (error) {
    close(fd);
    return SocketStatus(error.value(), "listen");
  }
  const tcp::endpoint bound = acceptor->acceptor_.local_endpoint(error);
  acceptor->address_ = FormatHostPort(bound.address().to_string(), bound.port());
  const bool posted = acceptor->io_->Post([acceptor] { acceptor->io_->Register(acceptor); });
  if (!posted) return Closed();
  return acceptor;
}

std::shared_ptr<TcpAcceptor::Accepted> TcpAcceptor::StartAccept() {
  // When it is refused the thread is closing everything, and the mailbox ends by that.
  io_->Post([self = shared_from_this()] { self->AcceptNext(); });
  return accepted_;
}

void TcpAcceptor::Close() {
  accepted_->Abort(Closed());
  // Waits, so that the port is free when this returns; the thread never blocks.
  auto closed = std::make_shared<std::promise<void>>();
  const bool posted = io_->Post([self = shared_from_this(), closed] {
    self->CloseOnThread();
    closed->set_value();
  });
  if (posted) closed->get_future().wait();
}

void TcpAcceptor::CloseOnThread() {
  if (std::exchange(closed_, true)) return;
  accepted_->Abort(Closed());
  error_code ignored;
  acceptor_.close(ignored);
  ReleaseReserve();
  retry_.cancel();
  io_->Unregister(shared_from_this());
}

void TcpAcceptor::AcceptNext() {
  while (!closed_ && !waiting_ && accepted_->size() < kTcpAcceptedAhead) {
    absl::StatusOr<AcceptedSocket> accepted = AcceptTcp(acceptor_.native_handle());
    if (accepted.ok()) {
      Reserve();
      Take(*std::move(accepted));
      continue;
    }
    if (absl::IsUnavailable(accepted.status())) return TryAgainWhenReadable();
    if (absl::IsCancelled(accepted.status())) continue;
    return OnStarved(accepted.status());
  }
}

void TcpAcceptor::OnStarved(const absl::Status& why) {
  shed_ += Shed();
  log_.Write(LogLevel::kWarning, std::chrono::steady_clock::now(),
             fmt::format("{} keeps clients waiting: {}; {} connections were closed so far: raise "
                         "RLIMIT_NOFILE",
                         address_, why.ToString(), shed_));
  TryAgainLater();
}

size_t TcpAcceptor::Shed() {
  if (reserve_ < 0) return 0;
  ReleaseReserve();
  size_t count = 0;
  for (; count < kShedAtOnce; ++count) {
    absl::StatusOr<AcceptedSocket> accepted = AcceptTcp(acceptor_.native_handle());
    if (!accepted.ok()) break;
    close(accepted->fd);
  }
  Reserve();
  return count;
}

// Another thread may have taken the last descriptor meanwhile: then there is no reserve for now.
void TcpAcceptor::Reserve() {
  if (reserve_ < 0) reserve_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void TcpAcceptor::ReleaseReserve() {
  if (reserve_ >= 0) close(std::exchange(reserve_, -1));
}

void TcpAcceptor::TryAgainWhenReadable() {
  waiting_ = true;
  acceptor_.async_wait(tcp::acceptor::wait_read, [self = shared_from_this()](const error_code&) {
    self->waiting_ = false;
    self->AcceptNext();
  });
}

void TcpAcceptor::TryAgainLater() {
  waiting_ = true;
  retry_.expires_after(kRetryDelay);
  retry_.async_wait([self = shared_from_this()](const error_code&) {
    self->waiting_ = false;
    self->AcceptNext();
  });
}

void TcpAcceptor::Take(AcceptedSocket accepted) {
  tcp::socket socket(io_->context());
  error_code error;
  socket.assign(acceptor_.local_endpoint(error).protocol(), accepted.fd, error);
  if (error) {
    close(accepted.fd);
    return TryAgainLater();
  }
  accepted_->Push(std::make_unique<TcpStream>(
      TcpConnection::Adopt(io_, std::move(socket), std::move(accepted.peer))));
}

TcpListener::TcpListener(std::shared_ptr<TcpAcceptor> acceptor) : acceptor_(std::move(acceptor)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
TcpListener::~TcpListener() { acceptor_->Close(); }

VERBENA_CORO_WRAPPER Task<StreamOr> TcpListener::Accept() { return AcceptFrom(acceptor_); }

void TcpListener::Close() { acceptor_->Close(); }

const std::string& TcpListener::address() const { return acceptor_->address(); }

}  // namespace verbena::internal
