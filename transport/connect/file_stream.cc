#include "verbena/transport/connect/file_stream.h"

#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

absl::Status ClosedHere() { return absl::CancelledError("the connection was closed on this side"); }

Task<absl::Status> SendOn(std::shared_ptr<FileConnection> connection, std::string message) {
  VERBENA_CO_ASSIGN_OR_RETURN(auto sent, connection->StartSend(std::move(message)));
  co_return (co_await sent->Pop()).status();
}

Task<absl::StatusOr<std::string>> ReceiveOn(std::shared_ptr<FileConnection> connection) {
  co_return co_await connection->StartReceive()->Pop();
}

}  // namespace

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
