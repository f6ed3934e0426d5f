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
  return internal::ClientWrite(*stream_, *message.message, payload).AsTask();
}

}  // namespace verbena::command
