// ScriptedStream: a stream over another one, whose messages wait, fail or throw as the test says.
//
//   std::make_unique<ScriptedStream>(std::move(stream), ScriptedStream::Script{
//       .before_send = [](MessageStream&, int number) -> Task<absl::Status> {
//         if (number == 2) co_return absl::UnavailableError("the client gives up");
//         co_return absl::OkStatus();
//       }});

#ifndef VERBENA_TESTS_TRANSPORT_CONNECT_SCRIPTED_STREAM_H_
#define VERBENA_TESTS_TRANSPORT_CONNECT_SCRIPTED_STREAM_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/any_handler.h"
#include "tests/transport/connect/passing_stream.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class ScriptedStream final : public PassingStream {
 public:
  // Told the stream, and the number of its Send() or Receive(), from 1. A failure is the Send()'s
  // or the Receive()'s own.
  using Step = AnyHandler<MessageStream&, int>;
  struct Script {
    Step before_send = {};
    Step after_send = {};
    Step before_receive = {};  // what it throws before its Task begins, Receive() throws at once
  };

  ScriptedStream(std::unique_ptr<MessageStream> stream, Script script);

  Task<absl::Status> Send(std::string message) override;
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() override;

 private:
  Task<absl::StatusOr<std::string>> ReceiveAfter(Task<absl::Status> step);

  const Script script_;
  int sends_ = 0;
  int receives_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_CONNECT_SCRIPTED_STREAM_H_
