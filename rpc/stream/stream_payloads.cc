#include "verbena/rpc/stream/stream_payloads.h"

#include <utility>

#include "verbena/rpc/stream/stream_receiver.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace {

// Waits until the Read has the memory that it wants, or its stream has failed: then OK, too.
Task<absl::Status> AwaitMemory(StreamReceiver& receiver, ReceivedPayload& payload) {
  const TaskContext context = co_await CurrentContext();
  StreamMemoryWait wait(receiver, context.cancel);
  absl::StatusOr<Buffer> memory =
      co_await receiver.buffers()->Allocate(payload.wanted).In(&wait.scope());
  // The receiver may be another stream's by now.
  if (wait.receiver() == nullptr) {
    const bool requested = context.cancel != nullptr && context.cancel->requested();
    co_return requested ? context.cancel->status() : CancelStatus(absl::StatusCode::kCancelled);
  }
  if (memory.ok()) {
    payload.buffer = *std::move(memory);
  } else if (context.cancel != nullptr && context.cancel->requested()) {
    co_return context.cancel->status();
  } else if (!wait.scope().requested()) {
    receiver.FailForMemory(memory.status());
  }
  co_return absl::OkStatus();
}

}  // namespace

StreamMemoryWait::StreamMemoryWait(StreamReceiver& receiver, CancelScope* parent)
    : receiver_(&receiver), scope_(parent) {
  receiver.BeginMemoryWait(*this);
}

StreamMemoryWait::~StreamMemoryWait() {
  if (receiver_ != nullptr) receiver_->EndMemoryWait();
}

Task<absl::StatusOr<bool>> ReadWithPayload(StreamReceiver& receiver,
                                           google::protobuf::MessageLite& into, PayloadSink sink) {
  ReceivedPayload payload{.buffer = std::move(*sink.payload)};
  *sink.has_payload = false;
  for (;;) {
    absl::StatusOr<bool> read = co_await StreamRead(receiver, into, &payload);
    if (payload.wanted == 0) {
      if (payload.buffer && !payload.present) payload.buffer.set_size(0);
      sink.Set(std::move(payload.buffer), payload.present);
      co_return read;
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitMemory(receiver, payload));
  }
}

}  // namespace verbena::internal
