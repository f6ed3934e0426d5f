// HttpCall: one POST to etcd's gateway: connect to an endpoint, send, and read the answer, or the
// lines of a watch.
//
// Shared by its handlers on the IoThread and by the EtcdExchange, which may go away at any time. It
// takes a connection of its own, so that one which etcd closes meanwhile cannot leave open whether
// a request was sent.

#ifndef VERBENA_RPC_NAMING_ETCD_HTTP_CALL_H_
#define VERBENA_RPC_NAMING_ETCD_HTTP_CALL_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verbena/rpc/naming/etcd/endpoints.h"
#include "verbena/rpc/naming/etcd/wire.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/mailbox.h"

namespace verbena::internal {

// The steps of a call, whatever its stream is.
class HttpCall : public IoObject, public std::enable_shared_from_this<HttpCall> {
 public:
  HttpCall(std::shared_ptr<IoThread> io, std::shared_ptr<EtcdEndpoints> endpoints,
           EtcdRequest request);

  // For any thread.
  void Start();
  void Close();
  void Took(size_t bytes) { untaken_ -= bytes; }
  void Avoid() { endpoints_->Avoid(asked_); }
  Mailbox<EtcdAnswer>& answers() { return *answers_; }

  void CloseOnThread() override;

 protected:
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::response_parser<boost::beast::http::string_body>;
  using Request = boost::beast::http::request<boost::beast::http::string_body>;

  // All of these on the thread. An attempt ends when `attempt_` moves on; handlers of older ones
  // find that out and do nothing.

  // Makes a stream over a connected socket, and calls OnReady().
  virtual void Adopt(boost::asio::ip::tcp::socket socket) = 0;
  virtual void Write() = 0;
  // Reads the header, then body as far as it has come: OnRead().
  virtual void ReadHeader() = 0;
  virtual void ReadSome() = 0;
  virtual void CloseStream() = 0;

  void OnReady(uint64_t attempt, const Error& error);
  void OnWritten(const Error& error);
  void OnHeader(const Error& error);
  void OnRead(const Error& error);

  const HostPort& host() const { return endpoints_->host(asked_); }
  bool is_current(uint64_t attempt) const { return !ended_ && attempt == attempt_; }

  const std::shared_ptr<IoThread> io_;
  const std::shared_ptr<EtcdEndpoints> endpoints_;
  uint64_t attempt_ = 0;
  Request http_request_;
  std::optional<Parser> parser_;
  boost::beast::flat_buffer buffer_;

 private:
  // How an attempt gets to its endpoint.
  struct Way {
    std::shared_ptr<boost::asio::ip::tcp::resolver> resolver;
    std::vector<boost::asio::ip::tcp::endpoint> addresses;
    size_t next_address = 0;
    std::shared_ptr<boost::asio::ip::tcp::socket> socket;  // that connects
  };

  void Attempt();
  void Resolve(uint64_t attempt);
  void ConnectNext(uint64_t attempt);
  // Ends what the attempt waits for: the kernel connects for minutes, and lookups are made one by
  // one.
  void LeaveWay();
  // The endpoint cannot be reached: on to the next one.
  void AttemptFailed(const std::string& why);
  // Gives `answer` to the reader, or ends the call if that has too much already.
  void Push(EtcdAnswer answer);
  void PushLines();
  void Deliver();
  void ReadFailed(const char* what, const Error& error);
  void Fail(std::string why);
  void End();
  // Calls AttemptFailed(), or Fail() if the request is sent, unless it is called off before.
  void StartTimer(Duration patience);
  std::string endpoint() const;

  const EtcdRequest request_;
  const std::shared_ptr<Mailbox<EtcdAnswer>> answers_ = std::make_shared<Mailbox<EtcdAnswer>>();
  std::atomic<size_t> untaken_ = 0;  // bytes of answers
  std::atomic<size_t> asked_ = 0;    // the endpoint
  size_t tried_ = 0;                 // endpoints
  Way way_;
  std::string last_error_;
  boost::asio::steady_timer timer_;
  size_t searched_ = 0;  // bytes of a watch's unfinished line; slow ones are not searched again
  bool sent_ = false;
  bool ended_ = false;
};

// In the clear, or over TLS if the endpoints say so.
std::shared_ptr<HttpCall> MakeHttpCall(std::shared_ptr<IoThread> io,
                                       std::shared_ptr<EtcdEndpoints> endpoints,
                                       EtcdRequest request);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_HTTP_CALL_H_
