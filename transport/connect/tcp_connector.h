// TcpConnector: one attempt to reach a target: resolve, then connect to each address in turn.
//
// Shared by its handlers on the IoThread and by the coroutine that waits for the outcome, which may
// go away at any time: a connection that nobody wants any more is closed.

#ifndef VERBENA_TRANSPORT_CONNECT_TCP_CONNECTOR_H_
#define VERBENA_TRANSPORT_CONNECT_TCP_CONNECTOR_H_

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/host_port.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/mailbox.h"

namespace verbena::internal {

class TcpConnector final : public IoObject, public std::enable_shared_from_this<TcpConnector> {
 public:
  using Outcome = Mailbox<std::unique_ptr<MessageStream>>;

  TcpConnector(std::shared_ptr<IoThread> io, HostPort target);

  // For the executor. The outcome gets one stream, or ends with the reason why there is none.
  std::shared_ptr<Outcome> Start();
  void Cancel();

  void CloseOnThread() override;

 private:
  // All of these on the thread.
  void Resolve();
  void ConnectNext();
  void OnConnected(const boost::system::error_code& error);
  void Fail(const absl::Status& why);
  std::string What() const;

  const std::shared_ptr<IoThread> io_;
  const HostPort target_;
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();

  // The rest belongs to the thread.
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::ip::tcp::socket socket_;
  std::vector<boost::asio::ip::tcp::endpoint> addresses_;
  size_t next_ = 0;
  absl::Status last_error_;
  bool ended_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_TCP_CONNECTOR_H_
