#include "verbena/rpc/naming/etcd/http_call.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/rpc/etcd.h"
#include "verbena/transport/base/tcp_socket.h"

namespace verbena::internal {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

// Answers of a watch that its reader has not taken.
constexpr size_t kMostUntakenAnswers = 1024;
constexpr size_t kMostUntakenBytes = 2 * EtcdClient::kMaxAnswerBytes;
// Bytes that wait to be parsed.
constexpr size_t kBufferBytes = size_t{64} << 10;

// The most bytes of an answer, and of each line of a watch.
size_t MostAnswerBytes() { return EtcdClient::kMaxAnswerBytes; }

}  // namespace

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
  if (!posted) answers_->Push({.text = "its thread has ended"});
}

void HttpCall::Close() {
  io_->Post([self = shared_from_this()] { self->CloseOnThread(); });
}

void HttpCall::CloseOnThread() {
  if (!ended_) End();
}

std::string HttpCall::endpoint() const { return FormatHostPort(host().host, host().port); }

void HttpCall::Attempt() {
  way_ = {};
  const uint64_t attempt = ++attempt_;
  StartTimer(endpoints_->timeout() / endpoints_->size());
  Resolve(attempt);
}

void HttpCall::Resolve(uint64_t attempt) {
  Error not_numeric;
  const asio::ip::address address = asio::ip::make_address(host().host, not_numeric);
  if (!not_numeric) {
    way_.addresses.emplace_back(address, host().port);
    return ConnectNext(attempt);
  }
  // One for each attempt: a lookup that hangs must not delay the next.
  way_.resolver = std::make_shared<tcp::resolver>(io_->context());
  way_.resolver->async_resolve(
      host().host, fmt::format("{}", host().port), tcp::resolver::numeric_service,
      [self = shared_from_this(), resolver = way_.resolver, attempt](
          const Error& error, const tcp::resolver::results_type& found) {
        if (!self->is_current(attempt)) return;
        if (error) return self->AttemptFailed("cannot resolve its name: " + error.message());
        for (const auto& entry : found) self->way_.addresses.push_back(entry.endpoint());
        self->ConnectNext(attempt);
      });
}

void HttpCall::ConnectNext(uint64_t attempt) {
  while (way_.next_address < way_.addresses.size()) {
    const tcp::endpoint& address = way_.addresses[way_.next_address++];
    const absl::StatusOr<int> fd = OpenTcpSocket(address.protocol().family(), "connect");
    if (!fd.ok()) {
      last_error_ = std::string(fd.status().message());
      continue;
    }
    auto socket = std::make_shared<tcp::socket>(io_->context());
    Error error;
    socket->assign(address.protocol(), *fd, error);
    if (error) {
      close(*fd);
      last_error_ = error.message();
      continue;
    }
    way_.socket = socket;
    return socket->async_connect(address,
                                 [self = shared_from_this(), socket, attempt](const Error& error) {
                                   if (!self->is_current(attempt)) return;
                                   self->way_.socket = nullptr;
                                   if (!error) return self->Adopt(std::move(*socket));
                                   self->last_error_ = "cannot connect: " + error.message();
                                   self->ConnectNext(attempt);
                                 });
  }
  AttemptFailed(last_error_);
}

void HttpCall::LeaveWay() {
  if (way_.resolver != nullptr) way_.resolver->cancel();
  Error ignored;
  if (way_.socket != nullptr) way_.socket->close(ignored);
  way_ = {};
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
    parser_->body_limit(MostAnswerBytes());
  }
  ReadHeader();
}

void HttpCall::OnHeader(const Error& error) {
  if (ended_) return;
  if (error) return ReadFailed("no answer of HTTP: ", error);
  if (parser_->is_done()) return Deliver();
  // Memory for all of the body is taken when its first byte comes, and a watch's has no limit.
  const auto length = parser_->content_length();
  if (length.has_value() && *length > MostAnswerBytes()) {
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
  if (parser_->get().body().size() > MostAnswerBytes()) {
    return ReadFailed("", http::error::body_limit);
  }
  ReadSome();
}

void HttpCall::ReadFailed(const char* what, const Error& error) {
  if (error == http::error::body_limit) {
    return Fail(
        fmt::format("the answer has more than {} bytes", size_t{EtcdClient::kMaxAnswerBytes}));
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
  if (untaken_ + bytes > kMostUntakenBytes) return Fail("its messages are not taken in time");
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
