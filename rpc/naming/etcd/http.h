// Requests to etcd's JSON gateway: EtcdWire and EtcdExchange, the interfaces; HttpCall, one request
// over HTTP or TLS; and EtcdEndpoints, the members to ask.
//
// A wire is shared by its clients; any thread. Sockets live on one IoThread. A request takes one
// connection of its own.

#ifndef VERBENA_RPC_NAMING_ETCD_HTTP_H_
#define VERBENA_RPC_NAMING_ETCD_HTTP_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/etcd.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/connect/connect_race.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/coro/mailbox.h"

namespace verbena::internal {

struct EtcdRequest {
  const char* path = nullptr;  // "/v3/kv/range"; a constant
  std::string body = {};       // JSON
  std::string token = {};      // of a login; "": none
  bool watches = false;        // many answers, until one side ends it
};

// The answer to a request, or one message of a watch. Plain values, since it crosses threads.
struct EtcdAnswer {
  int http_status = 0;        // 0: no answer has come or will come, and `text` says why
  std::string text = {};      // the body, or one line of it
  std::string endpoint = {};  // the one that answered, or the last one that was asked
  bool sent = false;          // etcd may have got the request
};

// A request on its way. Destroying it, on any thread, gives the request up.
class EtcdExchange {
 public:
  virtual ~EtcdExchange() = default;
  // A watch has any number of answers, each other request has one. An answer with the status 0 is
  // the last.
  virtual Mailbox<EtcdAnswer>& answers() = 0;
  // The reader took an answer of so many bytes, which makes room for others.
  virtual void Took(size_t bytes) = 0;
  // Call this if the endpoint answers, but cannot do its work: the next request begins with another
  // one.
  virtual void Avoid() = 0;
};

// EtcdWire: carries requests to etcd's JSON gateway and its answers back. An interface:
// StartHttpWire() makes the one over HTTP, and tests bring theirs.
//
// Any thread.
class EtcdWire {
 public:
  virtual ~EtcdWire() = default;
  virtual std::unique_ptr<EtcdExchange> Post(EtcdRequest request) = 0;
  // Whether requests depend on files, which somebody may have replaced.
  virtual bool has_files() const { return false; }
  // Blocks: reads the files again, for requests that begin later. If that fails, the log says so,
  // and what was read before stays.
  virtual absl::Status ReadFiles() { return absl::OkStatus(); }
};

// StartHttpWire: the way to etcd over HTTP/1.1, in the clear or over TLS. Asio, Beast and OpenSSL
// stay inside.

// The bounds that EtcdClient promises.
struct EtcdBounds {
  size_t answer_bytes;
  size_t endpoints;
};

// Checks the options and reads the files; connects nothing. `lookups` outlives the wire; tests
// bring their own.
absl::StatusOr<std::unique_ptr<EtcdWire>> StartHttpWire(
    const EtcdOptions& options, EtcdBounds bounds, NameLookups& lookups = NameLookups::System());

// EtcdEndpoints: the members of one etcd, and which of them to ask first.
//
// Shared by a wire and its calls; any thread.
class EtcdEndpoints {
 public:
  // `tls` is nullptr for connections in the clear. At least one host.
  EtcdEndpoints(std::vector<HostPort> hosts, Duration timeout, size_t answer_bytes,
                std::shared_ptr<boost::asio::ssl::context> tls, NameLookups& lookups)
      : hosts_(std::move(hosts)),
        timeout_(timeout),
        answer_bytes_(answer_bytes),
        lookups_(lookups),
        tls_(std::move(tls)) {
    VERBENA_CHECK(!hosts_.empty()) << "an etcd without a member";
  }

  size_t size() const { return hosts_.size(); }
  const HostPort& host(size_t index) const {
    VERBENA_CHECK(index < size()) << "member " << index << " of " << size();
    return hosts_[index];
  }
  Duration timeout() const { return timeout_; }
  // The most bytes of an answer, and of each line of a watch.
  size_t answer_bytes() const { return answer_bytes_; }
  NameLookups& lookups() const { return lookups_; }
  // For handshakes, which do not change it. nullptr: connections are in the clear.
  std::shared_ptr<boost::asio::ssl::context> tls() const {
    std::lock_guard lock(mutex_);
    return tls_;
  }
  // For later handshakes.
  void set_tls(std::shared_ptr<boost::asio::ssl::context> tls) {
    std::lock_guard lock(mutex_);
    tls_.swap(tls);
  }

  size_t first() const { return first_.load(std::memory_order_relaxed); }
  void Prefer(size_t index) {
    VERBENA_CHECK(index < size()) << "member " << index << " of " << size();
    first_.store(index, std::memory_order_relaxed);
  }
  // Unless another one is preferred by now.
  void Avoid(size_t index) {
    first_.compare_exchange_strong(index, (index + 1) % size(), std::memory_order_relaxed);
  }

 private:
  const std::vector<HostPort> hosts_;
  const Duration timeout_;
  const size_t answer_bytes_;
  NameLookups& lookups_;
  mutable std::mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> tls_;  // under mutex_
  std::atomic<size_t> first_ = 0;
};

// HttpCall: one POST to etcd's gateway: connect to an endpoint, send, and read the answer, or the
// lines of a watch.
//
// Shared by its handlers on the IoThread and by the EtcdExchange, which may go away at any time. It
// takes a connection of its own, so that one which etcd closes meanwhile cannot leave open whether
// a request was sent.
//
// A subclass adds the stream, in the clear or over TLS.
class HttpCall : public IoObject, public std::enable_shared_from_this<HttpCall> {
 public:
  HttpCall(std::shared_ptr<IoThread> io, std::shared_ptr<EtcdEndpoints> endpoints,
           EtcdRequest request);

  // For any thread.
  void Start();
  void Close();
  void Took(size_t bytes) {
    const size_t before = untaken_.fetch_sub(bytes);
    VERBENA_CHECK(before >= bytes) << bytes << " bytes are taken of " << before;
  }
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
  // ReadHeader() reads the header, ReadSome() the body as far as it has come; then OnRead() is
  // called.
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
  void Attempt();
  void Resolve(uint64_t attempt);
  void OnResolved(uint64_t attempt, const NameAnswer& answer);
  // To the first of the endpoint's addresses that answers.
  void Connect(std::vector<boost::asio::ip::tcp::endpoint> addresses);
  // Ends the attempt's connect: the kernel would go on for minutes.
  void LeaveWay();
  // The endpoint cannot be reached: on to the next one.
  void AttemptFailed(const std::string& why);
  // Gives `answer` to the reader, or ends the call if the reader has too many bytes already.
  void Push(EtcdAnswer answer);
  void PushLines();
  void Deliver();
  void ReadFailed(const char* what, const Error& error);
  void Fail(std::string why);
  void End();
  // After `patience`, calls AttemptFailed(), or Fail() if the request was sent, unless the timer is
  // stopped before.
  void StartTimer(Duration patience);
  // How long an attempt may take to connect.
  Duration patience() const { return endpoints_->timeout() / endpoints_->size(); }
  std::string endpoint() const;

  const EtcdRequest request_;
  const std::shared_ptr<Mailbox<EtcdAnswer>> answers_ = std::make_shared<Mailbox<EtcdAnswer>>();
  std::atomic<size_t> untaken_ = 0;    // bytes of answers
  std::atomic<size_t> asked_ = 0;      // the endpoint
  size_t tried_ = 0;                   // endpoints
  std::shared_ptr<ConnectRace> race_;  // of the last attempt that had addresses
  std::string last_error_;
  boost::asio::steady_timer timer_;
  size_t searched_ = 0;  // bytes of a watch's unfinished line; slow ones are not searched again
  bool sent_ = false;
  bool ended_ = false;
};

// A call in the clear, or over TLS if the endpoints say so.
std::shared_ptr<HttpCall> MakeHttpCall(std::shared_ptr<IoThread> io,
                                       std::shared_ptr<EtcdEndpoints> endpoints,
                                       EtcdRequest request);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_HTTP_H_
