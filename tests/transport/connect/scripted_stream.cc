#include "tests/transport/connect/scripted_stream.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/status.h"

namespace verbena {

ScriptedStream::ScriptedStream(std::unique_ptr<MessageStream> stream, Script script)
    : PassingStream(std::move(stream)), script_(std::move(script)) {}

Task<absl::Status> ScriptedStream::Send(std::string message) {
  const int number = ++sends_;
  if (script_.before_send) {
    VERBENA_CO_RETURN_IF_ERROR(co_await script_.before_send(*this, number));
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await PassingStream::Send(std::move(message)));
  if (script_.after_send) co_return co_await script_.after_send(*this, number);
  co_return absl::OkStatus();
}

Task<absl::StatusOr<std::string>> ScriptedStream::Receive() {
  if (!script_.before_receive) return PassingStream::Receive();
  return ReceiveAfter(script_.before_receive(*this, ++receives_));
}

Task<absl::StatusOr<std::string>> ScriptedStream::ReceiveAfter(Task<absl::Status> step) {
  VERBENA_CO_RETURN_IF_ERROR(co_await std::move(step));
  co_return co_await PassingStream::Receive();
}

}  // namespace verbena
