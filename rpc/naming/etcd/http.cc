#include "verbena/rpc/naming/etcd/http.h"

#include <openssl/ssl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/etcd.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/connect_race.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/resolved_endpoints.h"

namespace verbena::internal {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
namespace ssl = boost::asio::ssl;

namespace {

using TlsStream = asio::ssl::stream<tcp::socket>;

template <typename Stream>
class HttpCallOver final : public HttpCall {
 public:
  using HttpCall::HttpCall;

 private:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

  std::shared_ptr<HttpCallOver> self() {
    return std::static_pointer_cast<HttpCallOver>(shared_from_this());
  }

  void Adopt(tcp::socket socket) override {
    if constexpr (kTls) {
      const std::shared_ptr<ssl::context> tls = endpoints_->tls();
      stream_ = std::make_shared<Stream>(std::move(socket), *tls);
      Handshake();
    } else {
      stream_ = std::make_shared<Stream>(std::move(socket));
      OnReady(attempt_, Error());
    }
  }

  void Handshake() {
    const std::string& name = host().host;
    Error not_numeric;
    asio::ip::make_address(name, not_numeric);
    // Servers choose their certificate by it. Addresses are not sent.
    if (not_numeric) SSL_set_tlsext_host_name(stream_->native_handle(), name.c_str());
    stream_->set_verify_mode(asio::ssl::verify_peer);
    stream_->set_verify_callback(asio::ssl::host_name_verification(name));
    stream_->async_handshake(asio::ssl::stream_base::client,
                             [self = self(), stream = stream_, attempt = attempt_](
                                 const Error& error) { self->OnReady(attempt, error); });
  }

  void Write() override {
    http::async_write(
        *stream_, http_request_,
        [self = self(), stream = stream_](const Error& error, size_t) { self->OnWritten(error); });
  }

  void ReadHeader() override {
    http::async_read_header(
        *stream_, buffer_, *parser_,
        [self = self(), stream = stream_](const Error& error, size_t) { self->OnHeader(error); });
  }

  void ReadSome() override {
    http::async_read_some(
        *stream_, buffer_, *parser_,
        [self = self(), stream = stream_](const Error& error, size_t) { self->OnRead(error); });
  }

  void CloseStream() override {
    if (stream_ == nullptr) return;
    Error ignored;
    // Handlers that are on their way keep the stream.
    stream_->lowest_layer().close(ignored);
    stream_ = nullptr;
  }

  std::shared_ptr<Stream> stream_;
};

constexpr Duration kLeastTimeout = std::chrono::milliseconds(10);
constexpr Duration kLongestTimeout = std::chrono::minutes(1);

// How long the end of a process waits for the shared thread.
constexpr std::chrono::seconds kParkPatience(10);

// The thread that all wires share. It stays until the process ends: a wire may be destroyed on an
// executor, which must not wait for a lookup that hangs.
class SharedThread {
 public:
  static SharedThread& Instance() {
    static auto& shared = *new SharedThread;
    return shared;
  }

  absl::StatusOr<std::shared_ptr<IoThread>> Get() {
    return UnlessExiting([this]() -> absl::StatusOr<std::shared_ptr<IoThread>> {
      if (thread_ == nullptr) {
        VERBENA_ASSIGN_OR_RETURN(thread_, IoThread::Start());
      }
      return thread_;
    });
  }

  // Calls `use`, which uses OpenSSL on this thread, unless the process exits. An exit that begins
  // meanwhile waits for it.
  template <typename Use>
  std::invoke_result_t<Use> UnlessExiting(Use use) {
    std::lock_guard lock(mutex_);
    if (exits_) return absl::UnavailableError("etcd: no client begins while its process exits");
    return use();
  }

  // Call it once OpenSSL is in use: when the process exits, OpenSSL frees all that it has, while
  // the thread may still end a connection. exit() runs functions in the reverse order of atexit(),
  // so the thread stands still by then.
  static void ParkAtExit() {
    Instance().process_ = getpid();
    static const int registered = std::atexit([] { Instance().Park(); });
    if (registered != 0)
      VERBENA_LOG_LINE(kNaming, kWarning, "etcd: no room for a function that runs at exit");
  }

 private:
  void Park() {
    // A child of fork() has no such thread, and perhaps a mutex that nobody unlocks.
    if (process_ != getpid()) return;
    std::shared_ptr<IoThread> thread;
    {
      std::lock_guard lock(mutex_);
      exits_ = true;
      thread = thread_;
    }
    if (thread != nullptr) thread->Park(kParkPatience);
  }

  std::mutex mutex_;
  std::shared_ptr<IoThread> thread_;
  bool exits_ = false;
  std::atomic<pid_t> process_ = 0;  // the one that uses OpenSSL
};

absl::Status FileError(const char* option, const std::string& path,
                       const boost::system::error_code& error) {
  return absl::InvalidArgumentError(
      fmt::format("EtcdOptions::{}: {}: {}", option, path, error.message()));
}

// Reads the files. nullptr: no TLS.
absl::StatusOr<std::shared_ptr<ssl::context>> TlsOf(const EtcdOptions& options) {
  if (!options.tls) {
    if (options.ca_file.empty() && options.certificate_file.empty() && options.key_file.empty()) {
      return nullptr;
    }
    return absl::InvalidArgumentError(
        "EtcdOptions has files for TLS, but tls is false: set it, or leave the files out");
  }
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError(
        "EtcdOptions::certificate_file and key_file go together: give both, or none");
  }
  auto tls = std::make_shared<ssl::context>(ssl::context::tls_client);
  SharedThread::ParkAtExit();
  boost::system::error_code error;
  tls->set_options(
      ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (options.ca_file.empty()) {
    tls->set_default_verify_paths(error);
  } else {
    tls->load_verify_file(options.ca_file, error);
  }
  if (error) return FileError("ca_file", options.ca_file, error);
  if (options.certificate_file.empty()) return tls;
  tls->use_certificate_chain_file(options.certificate_file, error);
  if (error) return FileError("certificate_file", options.certificate_file, error);
  tls->use_private_key_file(options.key_file, ssl::context::pem, error);
  if (error) return FileError("key_file", options.key_file, error);
  return tls;
}

class HttpExchange final : public EtcdExchange {
 public:
  explicit HttpExchange(std::shared_ptr<HttpCall> call) : call_(std::move(call)) {}
  // NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
  ~HttpExchange() override { call_->Close(); }
  Mailbox<EtcdAnswer>& answers() override { return call_->answers(); }
  void Took(size_t bytes) override { call_->Took(bytes); }
  void Avoid() override { call_->Avoid(); }

 private:
  const std::shared_ptr<HttpCall> call_;
};

class HttpWire final : public EtcdWire {
 public:
  HttpWire(EtcdOptions options, std::shared_ptr<IoThread> io,
           std::shared_ptr<EtcdEndpoints> endpoints)
      : options_(std::move(options)), io_(std::move(io)), endpoints_(std::move(endpoints)) {}

  std::unique_ptr<EtcdExchange> Post(EtcdRequest request) override {
    std::shared_ptr<HttpCall> call = MakeHttpCall(io_, endpoints_, std::move(request));
    call->Start();
    return std::make_unique<HttpExchange>(std::move(call));
  }

  bool has_files() const override { return options_.tls; }
  absl::Status ReadFiles() override {
    absl::StatusOr<std::shared_ptr<ssl::context>> tls =
        SharedThread::Instance().UnlessExiting([this] { return TlsOf(options_); });
    if (!tls.ok()) {
      VERBENA_LOG_THROTTLED(
          log_, kWarning, std::chrono::steady_clock::now(),
          "the certificates for etcd stay as they were: " + std::string(tls.status().message()));
      return tls.status();
    }
    endpoints_->set_tls(*std::move(tls));
    return absl::OkStatus();
  }

 private:
  const EtcdOptions options_;
  const std::shared_ptr<IoThread> io_;
  const std::shared_ptr<EtcdEndpoints> endpoints_;
  ThrottledLog log_{LogComponent::kNaming, {.lines = 1}};
};

// Answers of a watch that its reader has not taken.
constexpr size_t kMostUntakenAnswers = 1024;
// Their bytes, in answers of the most bytes.
constexpr size_t kMostUntaken = 2;
// Bytes that wait to be parsed.
constexpr size_t kBufferBytes = size_t{64} << 10;

}  // namespace

// The two kinds of stream that an HttpCall runs over: TCP, and TLS over it.

std::shared_ptr<HttpCall> MakeHttpCall(std::shared_ptr<IoThread> io,
                                       std::shared_ptr<EtcdEndpoints> endpoints,
                                       EtcdRequest request) {
  if (endpoints->tls() == nullptr) {
    return std::make_shared<HttpCallOver<tcp::socket>>(std::move(io), std::move(endpoints),
                                                       std::move(request));
  }
  return std::make_shared<HttpCallOver<TlsStream>>(std::move(io), std::move(endpoints),
                                                   std::move(request));
}

absl::StatusOr<std::unique_ptr<EtcdWire>> StartHttpWire(const EtcdOptions& options,
                                                        EtcdBounds bounds, NameLookups& lookups) {
  if (options.endpoints.empty() || options.endpoints.size() > bounds.endpoints) {
    return absl::InvalidArgumentError(
        fmt::format("EtcdOptions::endpoints has {} entries, but must have 1 to {}",
                    options.endpoints.size(), bounds.endpoints));
  }
  if (options.timeout < kLeastTimeout || options.timeout > kLongestTimeout) {
    return absl::InvalidArgumentError(fmt::format(
        "EtcdOptions::timeout is {} ms: its range is 10 ms to 1 min",
        std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout).count()));
  }
  std::vector<HostPort> hosts;
  for (const std::string& each : options.endpoints) {
    VERBENA_ASSIGN_OR_RETURN(HostPort host, ParseHostPort(each));
    hosts.push_back(std::move(host));
  }
  // In an order of this client's own: otherwise all clients would ask the first member, and all go
  // to the second one when it dies.
  for (size_t i = hosts.size(); i > 1; --i) {
    std::swap(hosts[i - 1], hosts[Random::Real().Below(i)]);
  }
  VERBENA_ASSIGN_OR_RETURN(
      std::shared_ptr<ssl::context> tls,
      SharedThread::Instance().UnlessExiting([&options] { return TlsOf(options); }));
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<IoThread> io, SharedThread::Instance().Get());
  return std::make_unique<HttpWire>(
      options, std::move(io),
      std::make_shared<EtcdEndpoints>(std::move(hosts), options.timeout, bounds.answer_bytes,
                                      std::move(tls), lookups));
}

HttpCall::HttpCall(std::shared_ptr<IoThread> io, std::shared_ptr<EtcdEndpoints> endpoints,
                   EtcdRequest request)
    : io_(std::move(io)),
      endpoints_(std::move(endpoints)),
      buffer_(kBufferBytes),
      request_(std::move(request)),
      timer_(io_->context()) {}

void HttpCall::Start() {
  const bool posted = io_->Post([self = shared_from_this()] {
    self->io_->Register(self);
    self->asked_ = self->endpoints_->first();
    self->Attempt();
  });
  if (posted) return;
  EtcdAnswer none{.text = "its thread has ended"};
  untaken_ += none.text.size();
  answers_->Push(std::move(none));
}

void HttpCall::Close() {
  io_->Post([self = shared_from_this()] { self->CloseOnThread(); });
}

void HttpCall::CloseOnThread() {
  if (!ended_) End();
}

std::string HttpCall::endpoint() const { return FormatHostPort(host().host, host().port); }

void HttpCall::Attempt() {
  const uint64_t attempt = ++attempt_;
  StartTimer(patience());
  Resolve(attempt);
}

void HttpCall::Resolve(uint64_t attempt) {
  Error not_numeric;
  const asio::ip::address address = asio::ip::make_address(host().host, not_numeric);
  if (!not_numeric) return Connect({tcp::endpoint(address, host().port)});
  // The lookup may last longer than the attempt, and comes back to this thread.
  endpoints_->lookups().Start(
      host().host, [io = io_, weak = weak_from_this(), attempt](const NameAnswer& answer) {
        io->Post([weak, attempt, answer] {
          if (const auto self = weak.lock()) self->OnResolved(attempt, answer);
        });
      });
}

void HttpCall::OnResolved(uint64_t attempt, const NameAnswer& answer) {
  if (!is_current(attempt)) return;
  if (!answer.status().ok()) return AttemptFailed("cannot resolve its name: " + answer.why);
  Connect(EndpointsOf(answer, host().port));
}

void HttpCall::Connect(std::vector<tcp::endpoint> addresses) {
  // In a shared build this library has a copy of Asio of its own. ConnectRace, whose copy serves
  // the context, opens the sockets: none is opened on it here.
  race_ = std::make_shared<ConnectRace>(io_->context(), std::move(addresses), patience());
  race_->Start("cannot connect",
               [weak = weak_from_this()](absl::StatusOr<ConnectRace::Winner> winner) {
                 const auto self = weak.lock();
                 if (self == nullptr) return;
                 if (winner.ok()) return self->Adopt(std::move(winner->socket));
                 self->AttemptFailed(std::string(winner.status().message()));
               });
}

void HttpCall::LeaveWay() {
  if (race_ != nullptr) race_->Close();
}

void HttpCall::OnReady(uint64_t attempt, const Error& error) {
  if (!is_current(attempt)) return;
  if (error) return AttemptFailed("the TLS handshake failed: " + error.message());
  endpoints_->Prefer(asked_);
  http_request_ = Request(http::verb::post, request_.path, 11);
  http_request_.set(http::field::host, endpoint());
  http_request_.set(http::field::content_type, "application/json");
  // A member that has lost its leader refuses, and ends its watches, instead of being silent.
  http_request_.set("Grpc-Metadata-hasleader", "true");
  if (!request_.token.empty()) http_request_.set(http::field::authorization, request_.token);
  http_request_.keep_alive(false);
  http_request_.body() = request_.body;
  http_request_.prepare_payload();
  sent_ = true;
  StartTimer(endpoints_->timeout());
  Write();
}

void HttpCall::OnWritten(const Error& error) {
  if (ended_) return;
  if (error) return Fail("cannot send: " + error.message());
  parser_.emplace();
  if (request_.watches) {
    parser_->body_limit(boost::none);  // PushLines() bounds each line
  } else {
    parser_->body_limit(endpoints_->answer_bytes());
  }
  ReadHeader();
}

void HttpCall::OnHeader(const Error& error) {
  if (ended_) return;
  if (error) return ReadFailed("no answer of HTTP: ", error);
  if (parser_->is_done()) return Deliver();
  // Memory for all of the body is taken when its first byte comes, and a watch's has no limit.
  const auto length = parser_->content_length();
  if (length.has_value() && *length > endpoints_->answer_bytes()) {
    return ReadFailed("", http::error::body_limit);
  }
  ReadSome();
}

void HttpCall::OnRead(const Error& error) {
  if (ended_) return;
  // Some end a watch by closing, without the last chunk.
  if (error) return ReadFailed("the connection was lost: ", error);
  const bool is_stream = request_.watches && parser_->get().result_int() == 200;
  if (is_stream) {
    PushLines();
    if (ended_) return;
    if (parser_->is_done()) return Fail("the watch was ended");
  } else if (parser_->is_done()) {
    return Deliver();
  }
  if (parser_->get().body().size() > endpoints_->answer_bytes()) {
    return ReadFailed("", http::error::body_limit);
  }
  ReadSome();
}

void HttpCall::ReadFailed(const char* what, const Error& error) {
  if (error == http::error::body_limit) {
    return Fail(fmt::format("the answer has more than {} bytes", endpoints_->answer_bytes()));
  }
  Fail(what + error.message());
}

void HttpCall::PushLines() {
  std::string& body = parser_->get().body();
  size_t begin = 0;
  for (;;) {
    const size_t end = body.find('\n', std::max(begin, searched_));
    if (end == std::string::npos) break;
    if (end > begin) {
      // A watch may be silent from now on.
      timer_.cancel();
      Push({.http_status = 200,
            .text = body.substr(begin, end - begin),
            .endpoint = endpoint(),
            .sent = true});
      if (ended_) return;
    }
    begin = end + 1;
  }
  body.erase(0, begin);
  searched_ = body.size();
}

void HttpCall::Push(EtcdAnswer answer) {
  const size_t bytes = answer.text.size();
  if (untaken_ + bytes > kMostUntaken * endpoints_->answer_bytes())
    return Fail("its messages are not taken in time");
  untaken_ += bytes;
  if (!answers_->Push(std::move(answer), kMostUntakenAnswers)) {
    Fail("its messages are not taken in time");
  }
}

void HttpCall::Deliver() {
  Push({.http_status = static_cast<int>(parser_->get().result_int()),
        .text = std::move(parser_->get().body()),
        .endpoint = endpoint(),
        .sent = true});
  if (!ended_) End();
}

void HttpCall::AttemptFailed(const std::string& why) {
  last_error_ = why;
  LeaveWay();
  CloseStream();
  VERBENA_CHECK(tried_ < endpoints_->size()) << tried_ << " of " << endpoints_->size();
  if (++tried_ == endpoints_->size()) return Fail(last_error_);
  asked_ = (asked_ + 1) % endpoints_->size();
  Attempt();
}

void HttpCall::Fail(std::string why) {
  endpoints_->Avoid(asked_);
  untaken_ += why.size();
  // Beyond the bound: there is one such answer.
  answers_->Push({.text = std::move(why), .endpoint = endpoint(), .sent = sent_});
  End();
}

void HttpCall::End() {
  VERBENA_CHECK(!ended_) << "a call of etcd ends twice";
  ended_ = true;
  ++attempt_;
  timer_.cancel();
  LeaveWay();
  CloseStream();
  io_->Unregister(shared_from_this());
}

void HttpCall::StartTimer(Duration patience) {
  timer_.expires_after(patience);
  timer_.async_wait(
      [self = shared_from_this(), attempt = attempt_, sent = sent_, patience](const Error& error) {
        if (error || !self->is_current(attempt) || sent != self->sent_) return;
        const std::string why =
            fmt::format("no {} within {} ms", sent ? "answer" : "connection",
                        std::chrono::duration_cast<std::chrono::milliseconds>(patience).count());
        return sent ? self->Fail(why) : self->AttemptFailed(why);
      });
}

}  // namespace verbena::internal
