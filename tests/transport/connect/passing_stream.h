// PassingStream: a bootstrap's stream that passes everything on to another. A test derives from it
// and overrides what its stream does otherwise.
// OtherHello: one that sends another Hello, as an older, a newer or an odd peer would.

#ifndef VERBENA_TESTS_TRANSPORT_CONNECT_PASSING_STREAM_H_
#define VERBENA_TESTS_TRANSPORT_CONNECT_PASSING_STREAM_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class PassingStream : public MessageStream {
 public:
  explicit PassingStream(std::unique_ptr<MessageStream> stream) : stream_(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<absl::Status> Send(std::string message) override {
    return stream_->Send(std::move(message));
  }
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() override {
    return stream_->Receive();
  }
  void Close() override { stream_->Close(); }
  const std::string& peer() const override { return stream_->peer(); }
  const std::string& source() const override { return stream_->source(); }
  bool same_host() const override { return stream_->same_host(); }
  bool names_source() const override { return stream_->names_source(); }
  std::string own_address() const override { return stream_->own_address(); }

 private:
  const std::unique_ptr<MessageStream> stream_;
};

// A client's stream: the first message that it sends is the Hello.
class OtherHello : public PassingStream {
 public:
  // Gives the message to send in the place of `hello`.
  using Rewrite = std::function<std::string(internal::LinkParameters hello)>;

  OtherHello(std::unique_ptr<MessageStream> stream, Rewrite rewrite)
      : PassingStream(std::move(stream)), rewrite_(std::move(rewrite)) {}

  VERBENA_CORO_WRAPPER Task<absl::Status> Send(std::string message) override {
    if (std::exchange(is_hello_, false)) {
      message = rewrite_(internal::ParseHello(message, {}).value());
    }
    return PassingStream::Send(std::move(message));
  }

 private:
  const Rewrite rewrite_;
  bool is_hello_ = true;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_CONNECT_PASSING_STREAM_H_
