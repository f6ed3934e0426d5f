#include "verbena/transport/connect/tcp_bootstrap.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/connect_race.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/resolved_endpoints.h"
#include "verbena/transport/connect/tcp_stream.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/mailbox.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// TcpConnector: one attempt to reach a target: resolve, then connect to the first address that
// answers.
//
// Shared by its handlers on the IoThread and by the coroutine that waits for the outcome, which may
// go away at any time: a connection that nobody wants any more is closed.
class TcpConnector final : public IoObject, public std::enable_shared_from_this<TcpConnector> {
 public:
  using Outcome = Mailbox<std::unique_ptr<MessageStream>>;

  // `patience`: how long the coroutine waits at most.
  TcpConnector(std::shared_ptr<IoThread> io, NameLookups& lookups, HostPort target,
               Duration patience);

  // For the executor. The outcome gets one stream, or ends with the reason why there is none.
  std::shared_ptr<Outcome> Start();
  void Cancel();

  void CloseOnThread() override;

 private:
  // All of these on the thread.
  void Resolve();
  void OnResolved(const NameAnswer& answer);
  void Connect(std::vector<boost::asio::ip::tcp::endpoint> addresses);
  void OnConnected(absl::StatusOr<ConnectRace::Winner> winner);
  void Fail(const absl::Status& why);
  std::string What() const;

  const std::shared_ptr<IoThread> io_;
  NameLookups& lookups_;
  const HostPort target_;
  const Duration patience_;
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();

  // The rest belongs to the thread.
  std::shared_ptr<ConnectRace> race_;  // null until the addresses are known
  bool ended_ = false;
};

// A listening TCP socket as a MessageListener.
//
// As with streams, TcpAcceptor lives on the IoThread and the listener is the user's half. The
// acceptor takes connections from the kernel's queue on demand, at most kTcpAcceptedAhead ahead: a
// flood waits in that queue, and does not take the descriptors of this process. When the process is
// out of descriptors, the acceptor gives up one that it keeps in reserve. With that one it accepts
// waiting connections, refuses them with a time (handshake.h), and closes them. Then it waits a
// while, and logs counts. The listener does not fail.

inline constexpr size_t kTcpAcceptedAhead = 16;

class TcpAcceptor final : public IoObject, public std::enable_shared_from_this<TcpAcceptor> {
 public:
  using Accepted = Mailbox<std::unique_ptr<MessageStream>>;

  // From any thread. `fd` listens.
  static absl::StatusOr<std::shared_ptr<TcpAcceptor>> Adopt(std::shared_ptr<IoThread> io,
                                                            boost::asio::ip::tcp family,
                                                            UniqueFd fd);

  // For the executor.
  std::shared_ptr<Accepted> StartAccept();
  void Close();
  const std::string& address() const { return address_; }

  void CloseOnThread() override;

 private:
  explicit TcpAcceptor(std::shared_ptr<IoThread> io);

  // All of these on the thread.
  void AcceptNext();
  void TryAgainWhenReadable();
  void TryAgainLater();
  void OnStarved(const absl::Status& why);
  size_t Shed();
  void Reserve();
  void Take(AcceptedSocket accepted);

  const std::shared_ptr<IoThread> io_;
  const std::shared_ptr<Accepted> accepted_ = std::make_shared<Accepted>();
  std::string address_;

  // The rest belongs to the thread.
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  bool waiting_ = false;
  bool closed_ = false;
  UniqueFd reserve_;   // a descriptor to give up when there is no other; may be none
  uint64_t shed_ = 0;  // connections closed for want of descriptors
  ThrottledLog log_{LogComponent::kConnect, {.lines = 1}};
};

// The user's half.
class TcpListener final : public MessageListener {
 public:
  explicit TcpListener(std::shared_ptr<TcpAcceptor> acceptor);
  ~TcpListener() override;

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Accept() override;
  void Close() override;
  const std::string& address() const override;

 private:
  const std::shared_ptr<TcpAcceptor> acceptor_;
};

}  // namespace verbena::internal

namespace verbena {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

using StreamOr = absl::StatusOr<std::unique_ptr<MessageStream>>;

// Gives the attempt up if the coroutine ends first, for whatever reason.
class GiveUpOnExit {
 public:
  explicit GiveUpOnExit(std::shared_ptr<internal::TcpConnector> connector)
      : connector_(std::move(connector)) {}
  GiveUpOnExit(const GiveUpOnExit&) = delete;
  GiveUpOnExit& operator=(const GiveUpOnExit&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
  ~GiveUpOnExit() { connector_->Cancel(); }

 private:
  const std::shared_ptr<internal::TcpConnector> connector_;
};

Task<StreamOr> ConnectTo(std::shared_ptr<internal::IoThread> io, internal::NameLookups& lookups,
                         std::string target) {
  VERBENA_CO_ASSIGN_OR_RETURN(internal::HostPort parsed, internal::ParseHostPort(target));
  if (parsed.port == 0) {
    co_return absl::InvalidArgumentError(fmt::format("cannot connect to port 0 of {}", target));
  }
  const TaskContext context = co_await CurrentContext();
  auto connector = std::make_shared<internal::TcpConnector>(
      std::move(io), lookups, std::move(parsed), context.deadline() - context.scheduler->now());
  GiveUpOnExit give_up(connector);
  co_return co_await connector->Start()->Pop();
}

absl::StatusOr<tcp::endpoint> ResolveHere(internal::IoThread& io,
                                          const internal::HostPort& address) {
  error_code error;
  const asio::ip::address numeric = asio::ip::make_address(address.host, error);
  if (!error) return tcp::endpoint(numeric, address.port);
  tcp::resolver resolver(io.context());
  const auto found = resolver.resolve(address.host, fmt::format("{}", address.port),
                                      tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("cannot listen on \"{}\": {}", address.host, error.message()));
  }
  return found.begin()->endpoint();
}

absl::Status ListenError(int error, const std::string& name) {
  switch (error) {
    case EADDRINUSE:
      return absl::FailedPreconditionError(fmt::format(
          "{} is in use (EADDRINUSE): choose another port or stop the other server", name));
    case EACCES:
      return absl::PermissionDeniedError(
          fmt::format("{} needs privileges (EACCES): choose a port of 1024 or above", name));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          fmt::format("{} is no address of this host (EADDRNOTAVAIL)", name));
    default:
      return internal::SocketStatus(error, "listen on " + name);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpBootstrap>> TcpBootstrap::Create() {
  return Create(internal::NameLookups::System());
}

absl::StatusOr<std::unique_ptr<TcpBootstrap>> TcpBootstrap::Create(internal::NameLookups& lookups) {
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<internal::IoThread> io, internal::IoThread::Start());
  return std::unique_ptr<TcpBootstrap>(new TcpBootstrap(std::move(io), lookups));
}

TcpBootstrap::TcpBootstrap(std::shared_ptr<internal::IoThread> io, internal::NameLookups& lookups)
    : io_(std::move(io)), lookups_(lookups) {}

TcpBootstrap::~TcpBootstrap() { io_->Stop(); }

VERBENA_CORO_WRAPPER Task<StreamOr> TcpBootstrap::Connect(std::string target) {
  return ConnectTo(io_, lookups_, std::move(target));
}

absl::StatusOr<std::unique_ptr<MessageListener>> TcpBootstrap::Listen(const std::string& address) {
  VERBENA_ASSIGN_OR_RETURN(internal::HostPort parsed, internal::ParseHostPort(address));
  VERBENA_ASSIGN_OR_RETURN(tcp::endpoint endpoint, ResolveHere(*io_, parsed));
  internal::UniqueFd fd = internal::OpenTcpSocket(endpoint.protocol().family());
  if (!fd || !internal::BindTcpSocket(fd.get(), internal::SocketAddress(*endpoint.data())) ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return ListenError(errno, address);
  }
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<internal::TcpAcceptor> acceptor,
                           internal::TcpAcceptor::Adopt(io_, endpoint.protocol(), std::move(fd)));
  return std::make_unique<internal::TcpListener>(std::move(acceptor));
}

}  // namespace verbena

namespace verbena::internal {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

using StreamOr = absl::StatusOr<std::unique_ptr<MessageStream>>;

// How long an acceptor without descriptors waits: long enough not to spin, short for a client.
constexpr auto kRetryDelay = std::chrono::milliseconds(100);

// The most connections that are shed before the acceptor waits again, so that a flood does not keep
// the thread.
constexpr size_t kShedAtOnce = 64;
// Between the clients whose connections are shed, when they come again. (start)
constexpr auto kShedTurn = std::chrono::milliseconds(10);

// Refuses the connection for now. It is new, so the kernel has room for the message.
void RefuseForNow(int fd, size_t before) {
  absl::Status why = absl::ResourceExhaustedError(
      "the server's process has no descriptors left (RLIMIT_NOFILE): try again later");
  SetRetryAfter(why, kRetryDelay + before * kShedTurn);
  std::string refusal = EncodeRefusal(why);
  const std::array<uint8_t, 4> length = EncodeTcpLength(refusal.size());
  refusal.insert(refusal.begin(), length.begin(), length.end());
  (void)send(fd, refusal.data(), refusal.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

absl::Status Closed() { return absl::CancelledError("the listener was closed"); }

Task<StreamOr> AcceptFrom(std::shared_ptr<TcpAcceptor> acceptor) {
  co_return co_await acceptor->StartAccept()->Pop();
}

}  // namespace

TcpConnector::TcpConnector(std::shared_ptr<IoThread> io, NameLookups& lookups, HostPort target,
                           Duration patience)
    : io_(std::move(io)), lookups_(lookups), target_(std::move(target)), patience_(patience) {}

std::shared_ptr<TcpConnector::Outcome> TcpConnector::Start() {
  const bool posted = io_->Post([self = shared_from_this()] {
    self->io_->Register(self);
    self->Resolve();
  });
  if (!posted) outcome_->Finish(absl::CancelledError("the bootstrap was destroyed"));
  return outcome_;
}

void TcpConnector::Cancel() {
  io_->Post([self = shared_from_this()] { self->CloseOnThread(); });
}

void TcpConnector::CloseOnThread() { Fail(absl::CancelledError("the connection was given up")); }

void TcpConnector::Resolve() {
  error_code not_numeric;
  const asio::ip::address address = asio::ip::make_address(target_.host, not_numeric);
  if (!not_numeric) return Connect({tcp::endpoint(address, target_.port)});
  // The lookup may last longer than anybody wants its answer, and comes back to this thread.
  lookups_.Start(target_.host, [io = io_, weak = weak_from_this()](const NameAnswer& answer) {
    io->Post([weak, answer] {
      if (const auto self = weak.lock()) self->OnResolved(answer);
    });
  });
}

void TcpConnector::OnResolved(const NameAnswer& answer) {
  if (ended_) return;
  if (!answer.status().ok()) {
    return Fail(
        absl::UnavailableError(fmt::format("cannot resolve \"{}\": {}", target_.host, answer.why)));
  }
  Connect(EndpointsOf(answer, target_.port));
}

void TcpConnector::Connect(std::vector<tcp::endpoint> addresses) {
  race_ = std::make_shared<ConnectRace>(io_->context(), std::move(addresses), patience_);
  race_->Start(What(), [weak = weak_from_this()](absl::StatusOr<ConnectRace::Winner> winner) {
    if (const auto self = weak.lock()) self->OnConnected(std::move(winner));
  });
}

void TcpConnector::OnConnected(absl::StatusOr<ConnectRace::Winner> winner) {
  if (!winner.ok()) return Fail(winner.status());
  ended_ = true;
  const tcp::endpoint& peer = winner->address;
  outcome_->Push(std::make_unique<TcpStream>(TcpConnection::Adopt(
      io_, std::move(winner->socket), FormatHostPort(peer.address().to_string(), peer.port()))));
  io_->Unregister(shared_from_this());
}

void TcpConnector::Fail(const absl::Status& why) {
  if (std::exchange(ended_, true)) return;
  outcome_->Finish(why);
  if (race_ != nullptr) race_->Close();
  io_->Unregister(shared_from_this());
}

std::string TcpConnector::What() const {
  return "connect to " + FormatHostPort(target_.host, target_.port);
}

TcpAcceptor::TcpAcceptor(std::shared_ptr<IoThread> io)
    : io_(std::move(io)), acceptor_(io_->context()), retry_(io_->context()) {
  Reserve();
}

absl::StatusOr<std::shared_ptr<TcpAcceptor>> TcpAcceptor::Adopt(std::shared_ptr<IoThread> io,
                                                                tcp family, UniqueFd fd) {
  std::shared_ptr<TcpAcceptor> acceptor(new TcpAcceptor(std::move(io)));
  error_code error;
  acceptor->acceptor_.assign(family, fd.get(), error);
  if (error) return SocketStatus(error.value(), "listen");
  fd.Release();
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
  reserve_ = {};
  retry_.cancel();
  io_->Unregister(shared_from_this());
}

void TcpAcceptor::AcceptNext() {
  while (!closed_ && !waiting_ && accepted_->size() < kTcpAcceptedAhead) {
    absl::StatusOr<AcceptedSocket> accepted =
        AcceptSocket(acceptor_.native_handle(), "accept a connection");
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
  VERBENA_LOG_THROTTLED(
      log_, kWarning, std::chrono::steady_clock::now(),
      fmt::format("{} keeps clients waiting: {}; {} connections were closed so far: raise "
                  "RLIMIT_NOFILE",
                  address_, why.ToString(), shed_),
      {{"server", address_}});
  TryAgainLater();
}

size_t TcpAcceptor::Shed() {
  if (!reserve_) return 0;
  reserve_ = {};
  size_t count = 0;
  for (; count < kShedAtOnce; ++count) {
    const absl::StatusOr<AcceptedSocket> accepted =
        AcceptSocket(acceptor_.native_handle(), "accept a connection");
    if (!accepted.ok()) break;
    RefuseForNow(accepted->fd.get(), count);
  }
  Reserve();
  return count;
}

// Another thread may have taken the last descriptor meanwhile: then there is no reserve for now.
void TcpAcceptor::Reserve() {
  if (!reserve_) reserve_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void TcpAcceptor::TryAgainWhenReadable() {
  VERBENA_CHECK(!waiting_) << address_;
  waiting_ = true;
  acceptor_.async_wait(tcp::acceptor::wait_read, [self = shared_from_this()](const error_code&) {
    self->waiting_ = false;
    self->AcceptNext();
  });
}

void TcpAcceptor::TryAgainLater() {
  VERBENA_CHECK(!waiting_) << address_;
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
  socket.assign(acceptor_.local_endpoint(error).protocol(), accepted.fd.get(), error);
  if (error) return TryAgainLater();
  accepted.fd.Release();
  DetectDeadHost(socket.native_handle());
  accepted_->Push(std::make_unique<TcpStream>(
      TcpConnection::Adopt(io_, std::move(socket), accepted.peer.text())));
}

TcpListener::TcpListener(std::shared_ptr<TcpAcceptor> acceptor) : acceptor_(std::move(acceptor)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
TcpListener::~TcpListener() { acceptor_->Close(); }

VERBENA_CORO_WRAPPER Task<StreamOr> TcpListener::Accept() { return AcceptFrom(acceptor_); }

void TcpListener::Close() { acceptor_->Close(); }

const std::string& TcpListener::address() const { return acceptor_->address(); }

}  // namespace verbena::internal
