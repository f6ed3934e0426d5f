#include "verbena/transport/connect/tcp_stream.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

uint32_t DecodeLength(const std::array<uint8_t, 4>& bytes) {
  return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
         uint32_t{bytes[3]} << 24;
}

// Both ends have one address: the kernel's loopback, whichever interface that address is of.
bool EndsOnOneHost(const asio::ip::tcp::socket& socket) {
  error_code error;
  const asio::ip::tcp::endpoint here = socket.local_endpoint(error);
  if (error) return false;
  const asio::ip::tcp::endpoint there = socket.remote_endpoint(error);
  return !error && here.address() == there.address();
}

// "" if the connection is gone already.
std::string OwnAddress(const asio::ip::tcp::socket& socket) {
  error_code error;
  const asio::ip::tcp::endpoint here = socket.local_endpoint(error);
  return error ? "" : here.address().to_string();
}

absl::Status ReadStatus(const error_code& error, const std::string& peer) {
  if (error == asio::error::operation_aborted) return ClosedHere();
  if (error != asio::error::eof) return SocketStatus(error.value(), "receive from " + peer);
  return absl::UnavailableError(peer + " has closed the connection");
}

// The end came after `got` bytes of `what`.
absl::Status CutOff(const absl::Status& end, size_t got, const std::string& what) {
  return absl::Status(
      end.code(), fmt::format("{}, after {} bytes of {}", std::string(end.message()), got, what));
}

Task<absl::Status> SendOn(std::shared_ptr<TcpConnection> connection, std::string message) {
  VERBENA_CO_ASSIGN_OR_RETURN(auto sent, connection->StartSend(std::move(message)));
  co_return (co_await sent->Pop()).status();
}

Task<absl::StatusOr<std::string>> ReceiveOn(std::shared_ptr<TcpConnection> connection) {
  co_return co_await connection->StartReceive()->Pop();
}

}  // namespace

std::array<uint8_t, 4> EncodeTcpLength(size_t bytes) {
  const uint32_t value = static_cast<uint32_t>(bytes);
  return {static_cast<uint8_t>(value), static_cast<uint8_t>(value >> 8),
          static_cast<uint8_t>(value >> 16), static_cast<uint8_t>(value >> 24)};
}

std::shared_ptr<TcpConnection> TcpConnection::Adopt(std::shared_ptr<IoThread> io,
                                                    asio::ip::tcp::socket socket,
                                                    std::string peer) {
  std::shared_ptr<TcpConnection> connection(
      new TcpConnection(std::move(io), std::move(socket), std::move(peer)));
  connection->io_->Register(connection);
  return connection;
}

TcpConnection::TcpConnection(std::shared_ptr<IoThread> io, asio::ip::tcp::socket socket,
                             std::string peer)
    : io_(std::move(io)),
      peer_(std::move(peer)),
      source_(SourceOf(peer_)),
      same_host_(EndsOnOneHost(socket)),
      own_address_(OwnAddress(socket)),
      socket_(std::move(socket)) {}

absl::StatusOr<std::shared_ptr<Mailbox<TcpConnection::Sent>>> TcpConnection::StartSend(
    std::string message) {
  VERBENA_RETURN_IF_ERROR(CheckBootstrapMessage(message.size()));
  if (closed_) return ClosedHere();
  if (unsent_.fetch_add(1) >= kTcpUnsentMessages) {
    --unsent_;
    return absl::ResourceExhaustedError(fmt::format(
        "{} messages to {} are still unsent: it does not read", kTcpUnsentMessages, peer_));
  }
  auto sent = std::make_shared<Mailbox<Sent>>();
  Outgoing outgoing{EncodeTcpLength(message.size()), std::move(message), sent};
  const bool posted =
      io_->Post([self = shared_from_this(), outgoing = std::move(outgoing)]() mutable {
        self->outgoing_.push_back(std::move(outgoing));
        if (self->outgoing_.size() == 1) self->WriteNext();
      });
  if (!posted) return ClosedHere();
  return sent;
}

std::shared_ptr<Mailbox<std::string>> TcpConnection::StartReceive() {
  // When it is refused the thread is closing everything, and the mailbox ends by that.
  io_->Post([self = shared_from_this()] { self->ReadNext(); });
  return received_;
}

void TcpConnection::Close() {
  if (closed_.exchange(true)) return;
  received_->Abort(ClosedHere());
  io_->Post([self = shared_from_this()] { self->CloseOnThread(); });
}

void TcpConnection::CloseOnThread() {
  closed_ = true;
  io_->Unregister(shared_from_this());
  received_->Abort(ClosedHere());
  read_ended_ = true;
  error_code ignored;
  socket_.close(ignored);
  EndWriting(ClosedHere());
}

void TcpConnection::ReadNext() {
  if (reading_ || read_ended_ || !received_->empty()) return;
  reading_ = true;
  asio::async_read(socket_, asio::buffer(length_),
                   [self = shared_from_this()](const error_code& error, size_t bytes) {
                     self->OnLength(error, bytes);
                   });
}

void TcpConnection::OnLength(const error_code& error, size_t bytes) {
  VERBENA_CHECK(reading_) << peer_;
  if (error) {
    const absl::Status end = ReadStatus(error, peer_);
    return EndReading(bytes == 0 ? end : CutOff(end, bytes, "a message's length"));
  }
  const uint32_t length = DecodeLength(length_);
  if (absl::Status valid = CheckBootstrapMessage(length); !valid.ok()) {
    return EndReading(absl::InvalidArgumentError(fmt::format(
        "{} does not speak Verbena's protocol: {}", peer_, std::string(valid.message()))));
  }
  message_.resize(length);
  asio::async_read(socket_, asio::buffer(message_),
                   [self = shared_from_this()](const error_code& error, size_t bytes) {
                     self->OnMessage(error, bytes);
                   });
}

void TcpConnection::OnMessage(const error_code& error, size_t bytes) {
  VERBENA_CHECK(reading_) << peer_;
  if (error) {
    return EndReading(
        CutOff(ReadStatus(error, peer_), bytes, fmt::format("a message of {}", message_.size())));
  }
  reading_ = false;
  received_->Push(std::exchange(message_, {}));
}

void TcpConnection::EndReading(const absl::Status& why) {
  reading_ = false;
  read_ended_ = true;
  received_->Finish(why);
}

void TcpConnection::WriteNext() {
  VERBENA_CHECK(!writing_ && !outgoing_.empty())
      << peer_ << ", " << outgoing_.size() << " messages are on their way";
  if (!write_end_.ok()) return EndWriting(write_end_);
  writing_ = true;
  const Outgoing& next = outgoing_.front();
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(next.length),
                                                     asio::buffer(next.message)};
  asio::async_write(socket_, buffers, [self = shared_from_this()](const error_code& error, size_t) {
    self->OnWritten(error);
  });
}

void TcpConnection::OnWritten(const error_code& error) {
  VERBENA_CHECK(writing_ && !outgoing_.empty()) << peer_;
  writing_ = false;
  if (!write_end_.ok()) return EndWriting(write_end_);
  if (error) return EndWriting(SocketStatus(error.value(), fmt::format("send to {}", peer_)));
  outgoing_.front().sent->Push(Sent{});
  outgoing_.pop_front();
  --unsent_;
  if (!outgoing_.empty()) WriteNext();
}

void TcpConnection::EndWriting(absl::Status why) {
  for (Outgoing& outgoing : outgoing_) outgoing.sent->Finish(why);
  write_end_ = std::move(why);
  // The message being written belongs to the socket until its handler has run.
  if (writing_) return;
  VERBENA_CHECK(unsent_ >= outgoing_.size()) << unsent_.load() << " of " << outgoing_.size();
  unsent_ -= outgoing_.size();
  outgoing_.clear();
}

TcpStream::TcpStream(std::shared_ptr<TcpConnection> connection)
    : connection_(std::move(connection)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
TcpStream::~TcpStream() { connection_->Close(); }

VERBENA_CORO_WRAPPER Task<absl::Status> TcpStream::Send(std::string message) {
  return SendOn(connection_, std::move(message));
}

VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> TcpStream::Receive() {
  return ReceiveOn(connection_);
}

void TcpStream::Close() { connection_->Close(); }

const std::string& TcpStream::peer() const { return connection_->peer(); }

const std::string& TcpStream::source() const { return connection_->source(); }

bool TcpStream::same_host() const { return connection_->same_host(); }

std::string TcpStream::own_address() const { return connection_->own_address(); }

}  // namespace verbena::internal
