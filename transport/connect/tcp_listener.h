// A listening TCP socket as a MessageListener.
//
// As with streams, TcpAcceptor lives on the IoThread and the listener is the user's half. The
// acceptor takes connections from the kernel's queue on demand, at most kTcpAcceptedAhead ahead: a
// flood waits in that queue, and does not take the descriptors of this process. When the process is
// out of descriptors, the acceptor gives up one that it keeps in reserve. With that one it accepts
// waiting connections and closes them, so that their clients hear of it at once. Then it waits a
// while, and logs counts. The listener does not fail.

#ifndef VERBENA_TRANSPORT_CONNECT_TCP_LISTENER_H_
#define VERBENA_TRANSPORT_CONNECT_TCP_LISTENER_H_

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/tcp_socket.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/mailbox.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

inline constexpr size_t kTcpAcceptedAhead = 16;

class TcpAcceptor final : public IoObject, public std::enable_shared_from_this<TcpAcceptor> {
 public:
  using Accepted = Mailbox<std::unique_ptr<MessageStream>>;

  // From any thread. Takes the listening descriptor `fd`.
  static absl::StatusOr<std::shared_ptr<TcpAcceptor>> Adopt(std::shared_ptr<IoThread> io, int fd);

  // For the executor.
  std::shared_ptr<Accepted> StartAccept();
  void Close();
  const std::string& address() const { return address_; }

  void CloseOnThread() override;
  ~TcpAcceptor() override;

 private:
  explicit TcpAcceptor(std::shared_ptr<IoThread> io);

  // All of these on the thread.
  void AcceptNext();
  void TryAgainWhenReadable();
  void TryAgainLater();
  void OnStarved(const absl::Status& why);
  size_t Shed();
  void Reserve();
  void ReleaseReserve();
  void Take(AcceptedSocket accepted);

  const std::shared_ptr<IoThread> io_;
  const std::shared_ptr<Accepted> accepted_ = std::make_shared<Accepted>();
  std::string address_;

  // The rest belongs to the thread.
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  bool waiting_ = false;
  bool closed_ = false;
  int reserve_ = -1;   // a descriptor to give up when there is no other; -1 while there is none
  uint64_t shed_ = 0;  // connections closed for want of descriptors
  ThrottledLog log_{{.lines = 1}};
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

#endif  // VERBENA_TRANSPORT_CONNECT_TCP_LISTENER_H_
