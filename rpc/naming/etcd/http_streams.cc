// The two kinds of stream that an HttpCall runs over: TCP, and TLS over it.

#include <openssl/ssl.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <memory>
#include <type_traits>
#include <utility>

#include "verbena/rpc/naming/etcd/http_call.h"

namespace verbena::internal {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
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
      stream_ = std::make_shared<Stream>(std::move(socket), *endpoints_->tls());
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

}  // namespace

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

}  // namespace verbena::internal
