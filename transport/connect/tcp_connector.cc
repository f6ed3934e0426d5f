#include "verbena/transport/connect/tcp_connector.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/transport/base/tcp_socket.h"
#include "verbena/transport/connect/tcp_stream.h"

namespace verbena::internal {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

}  // namespace

TcpConnector::TcpConnector(std::shared_ptr<IoThread> io, HostPort target)
    : io_(std::move(io)),
      target_(std::move(target)),
      resolver_(io_->context()),
      socket_(io_->context()) {}

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
  if (!not_numeric) {
    addresses_.emplace_back(address, target_.port);
    return ConnectNext();
  }
  resolver_.async_resolve(
      target_.host, fmt::format("{}", target_.port), tcp::resolver::numeric_service,
      [self = shared_from_this()](const error_code& error,
                                  const tcp::resolver::results_type& found) {
        if (self->ended_) return;
        if (error) {
          return self->Fail(absl::UnavailableError(
              fmt::format("cannot resolve \"{}\": {}", self->target_.host, error.message())));
        }
        for (const auto& entry : found) self->addresses_.push_back(entry.endpoint());
        self->ConnectNext();
      });
}

void TcpConnector::ConnectNext() {
  while (next_ < addresses_.size()) {
    const tcp::endpoint& address = addresses_[next_++];
    absl::StatusOr<int> fd = OpenTcpSocket(address.protocol().family(), What());
    if (!fd.ok()) {
      last_error_ = fd.status();
      continue;
    }
    error_code error;
    socket_.assign(address.protocol(), *fd, error);
    if (error) {
      close(*fd);
      last_error_ = SocketStatus(error.value(), What());
      continue;
    }
    return socket_.async_connect(address, [self = shared_from_this()](const error_code& error) {
      self->OnConnected(error);
    });
  }
  Fail(last_error_);
}

void TcpConnector::OnConnected(const error_code& error) {
  if (ended_) return;
  if (error) {
    last_error_ = SocketStatus(error.value(), What());
    error_code ignored;
    socket_.close(ignored);
    return ConnectNext();
  }
  ended_ = true;
  const tcp::endpoint& peer = addresses_[next_ - 1];
  outcome_->Push(std::make_unique<TcpStream>(TcpConnection::Adopt(
      io_, std::move(socket_), FormatHostPort(peer.address().to_string(), peer.port()))));
  io_->Unregister(shared_from_this());
}

void TcpConnector::Fail(const absl::Status& why) {
  if (std::exchange(ended_, true)) return;
  outcome_->Finish(why);
  resolver_.cancel();
  error_code ignored;
  socket_.close(ignored);
  io_->Unregister(shared_from_this());
}

std::string TcpConnector::What() const {
  return "connect to " + FormatHostPort(target_.host, target_.port);
}

}  // namespace verbena::internal
