// A TCP connection as a MessageStream: each message is a little-endian u32 length and its bytes.
//
// Two halves. TcpConnection lives on the IoThread and owns the socket; it is shared by its handlers
// and the stream. The stream is what the user holds. They meet in mailboxes, so that an await may
// be cancelled or destroyed while the socket works: a message half received is then finished for
// the next Receive(), and one half sent is sent whole.
//
// Reading happens on demand and at most one message ahead. At most kTcpUnsentMessages are on their
// way out, all but one of them left behind by cancelled Sends. A declared length is checked before
// anything is allocated for it.

#ifndef VERBENA_TRANSPORT_CONNECT_TCP_STREAM_H_
#define VERBENA_TRANSPORT_CONNECT_TCP_STREAM_H_

#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/coro/mailbox.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

inline constexpr size_t kTcpUnsentMessages = 16;

// The length of a message as it travels before its bytes.
std::array<uint8_t, 4> EncodeTcpLength(size_t bytes);

class TcpConnection final : public IoObject, public std::enable_shared_from_this<TcpConnection> {
 public:
  // Says that a message was handed to the kernel.
  struct Sent {};

  // On the thread. `socket` is connected; `peer` is its other end.
  static std::shared_ptr<TcpConnection> Adopt(std::shared_ptr<IoThread> io,
                                              boost::asio::ip::tcp::socket socket,
                                              std::string peer);

  // For the executor. Start*() return at once; their results arrive in the mailbox.
  absl::StatusOr<std::shared_ptr<Mailbox<Sent>>> StartSend(std::string message);
  std::shared_ptr<Mailbox<std::string>> StartReceive();
  void Close();
  const std::string& peer() const { return peer_; }
  const std::string& source() const { return source_; }
  bool same_host() const { return same_host_; }
  const std::string& own_address() const { return own_address_; }

  void CloseOnThread() override;

 private:
  struct Outgoing {
    std::array<uint8_t, 4> length;
    std::string message;
    std::shared_ptr<Mailbox<Sent>> sent;
  };

  TcpConnection(std::shared_ptr<IoThread> io, boost::asio::ip::tcp::socket socket,
                std::string peer);

  // All of these on the thread.
  void ReadNext();
  void OnLength(const boost::system::error_code& error, size_t bytes);
  void OnMessage(const boost::system::error_code& error, size_t bytes);
  void EndReading(const absl::Status& why);
  void WriteNext();
  void OnWritten(const boost::system::error_code& error);
  void EndWriting(absl::Status why);

  const std::shared_ptr<IoThread> io_;
  const std::string peer_;
  const std::string source_;
  const bool same_host_;
  const std::string own_address_;
  const std::shared_ptr<Mailbox<std::string>> received_ = std::make_shared<Mailbox<std::string>>();
  std::atomic<size_t> unsent_ = 0;
  std::atomic<bool> closed_ = false;

  // The rest belongs to the thread.
  boost::asio::ip::tcp::socket socket_;
  bool reading_ = false;
  bool read_ended_ = false;
  bool writing_ = false;
  std::array<uint8_t, 4> length_{};
  std::string message_;
  std::deque<Outgoing> outgoing_;  // the first is being written
  absl::Status write_end_;         // OK while it can be written to
};

// The user's half.
class TcpStream final : public MessageStream {
 public:
  explicit TcpStream(std::shared_ptr<TcpConnection> connection);
  ~TcpStream() override;

  Task<absl::Status> Send(std::string message) override;
  Task<absl::StatusOr<std::string>> Receive() override;
  void Close() override;
  const std::string& peer() const override;
  const std::string& source() const override;
  bool same_host() const override;
  std::string own_address() const override;

 private:
  const std::shared_ptr<TcpConnection> connection_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_TCP_STREAM_H_
