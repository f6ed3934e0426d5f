#include "tools/verbena/dynamic_call.h"

namespace verbena::command {

Task<bool> DynamicStream::Read(DynamicMessage& into) {
  if (method_.descriptor.messages_have_payloads(Streams::kServer)) {
    return internal::ReadWithPayload(internal::StreamRef(*stream_), *into.message, into.sink(true));
  }
  return internal::ClientRead(*stream_, *into.message).AsTask();
}

Task<absl::Status> DynamicStream::Write(const DynamicMessage& message) {
  internal::BorrowedPayload payload;
  if (message.has_payload) payload = {.view = message.payload.view(), .present = true};
  co_return FromServer(co_await internal::ClientWrite(*stream_, *message.message, payload));
}

Task<absl::Status> DynamicStream::WritesDone() {
  co_return FromServer(co_await internal::EndWrites(internal::StreamRef(*stream_)));
}

Task<absl::Status> DynamicStream::Finish() {
  co_return FromServer(co_await internal::FinishStream(internal::StreamRef(*stream_)));
}

Task<absl::Status> DynamicStream::Finish(google::protobuf::Message& reply) {
  co_return FromServer(co_await internal::FinishWithReply(internal::StreamRef(*stream_), reply));
}

}  // namespace verbena::command
