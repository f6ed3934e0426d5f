// StreamTo: a bootstrap stream whose peer seems to connect from another source address.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_STREAM_TO_H_
#define VERBENA_TESTS_TRANSPORT_LINK_STREAM_TO_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class StreamTo final : public MessageStream {
 public:
  StreamTo(std::unique_ptr<MessageStream> stream, std::string source)
      : stream_(std::move(stream)), source_(std::move(source)) {}

  Task<absl::Status> Send(std::string message) override {
    co_return co_await stream_->Send(std::move(message));
  }
  Task<absl::StatusOr<std::string>> Receive() override { co_return co_await stream_->Receive(); }
  void Close() override { stream_->Close(); }
  const std::string& peer() const override { return stream_->peer(); }
  const std::string& source() const override { return source_; }

 private:
  const std::unique_ptr<MessageStream> stream_;
  const std::string source_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_LINK_STREAM_TO_H_
