#include "verbena/transport/connect/tcp_bootstrap.h"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/host_port.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/base/tcp_socket.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/tcp_connector.h"
#include "verbena/transport/connect/tcp_listener.h"

namespace verbena {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using StreamOr = absl::StatusOr<std::unique_ptr<MessageStream>>;

// Gives the attempt up if the coroutine ends first, for whatever reason.
class GiveUpOnExit {
 public:
  explicit GiveUpOnExit(std::shared_ptr<internal::TcpConnector> connector)
      : connector_(std::move(connector)) {}
  GiveUpOnExit(const GiveUpOnExit&) = delete;
  GiveUpOnExit& operator=(const GiveUpOnExit&) = delete;
  ~GiveUpOnExit() { connector_->Cancel(); }

 private:
  const std::shared_ptr<internal::TcpConnector> connector_;
};

Task<StreamOr> ConnectTo(std::shared_ptr<internal::IoThread> io, std::string target) {
  VERBENA_CO_ASSIGN_OR_RETURN(internal::HostPort parsed, internal::ParseHostPort(target));
  if (parsed.port == 0) {
    co_return absl::InvalidArgumentError(fmt::format("cannot connect to port 0 of {}", target));
  }
  auto connector = std::make_shared<internal::TcpConnector>(std::move(io), std::move(parsed));
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

}  // namespace

absl::StatusOr<std::unique_ptr<TcpBootstrap>> TcpBootstrap::Create() {
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<internal::IoThread> io, internal::IoThread::Start());
  return std::unique_ptr<TcpBootstrap>(new TcpBootstrap(std::move(io)));
}

TcpBootstrap::TcpBootstrap(std::shared_ptr<internal::IoThread> io) : io_(std::move(io)) {}

TcpBootstrap::~TcpBootstrap() { io_->Stop(); }

VERBENA_CORO_WRAPPER Task<StreamOr> TcpBootstrap::Connect(std::string target) {
  return ConnectTo(io_, std::move(target));
}

absl::StatusOr<std::unique_ptr<MessageListener>> TcpBootstrap::Listen(const std::string& address) {
  VERBENA_ASSIGN_OR_RETURN(internal::HostPort parsed, internal::ParseHostPort(address));
  VERBENA_ASSIGN_OR_RETURN(tcp::endpoint endpoint, ResolveHere(*io_, parsed));
  VERBENA_ASSIGN_OR_RETURN(
      int fd,
      internal::ListenTcp(endpoint.data(), static_cast<socklen_t>(endpoint.size()), address));
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<internal::TcpAcceptor> acceptor,
                           internal::TcpAcceptor::Adopt(io_, fd));
  return std::make_unique<internal::TcpListener>(std::move(acceptor));
}

}  // namespace verbena
