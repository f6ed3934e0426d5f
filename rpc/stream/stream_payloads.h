// The payloads of a stream's messages: StreamBuffers gives them memory, and ReadWithPayload() reads
// a message that may have one.
//
// A payload is copied out of the receive buffers into the Buffer that its reader gets. A message
// whose reader finds no memory waits with what came behind it, so that its sender's window closes.
// The wait is bounded, and fails the stream. On the stream's executor's thread.

#ifndef VERBENA_RPC_STREAM_STREAM_PAYLOADS_H_
#define VERBENA_RPC_STREAM_STREAM_PAYLOADS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/stream_awaits.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// The memory that one stream's payloads may have, within the bounds of the peer that sends them.
class StreamBuffers {
 public:
  virtual ~StreamBuffers() = default;
  // RESOURCE_EXHAUSTED if there is none now.
  virtual absl::StatusOr<Buffer> TryAllocate(size_t bytes) = 0;
  // Waits for memory. RESOURCE_EXHAUSTED, in words for the application, if that takes too long. The
  // object may be destroyed meanwhile.
  virtual Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) = 0;
};

// A wait for memory of a stream's Read. Ends early if the stream fails, or is gone.
class StreamMemoryWait {
 public:
  StreamMemoryWait(StreamReceiver& receiver, CancelScope* parent);
  StreamMemoryWait(const StreamMemoryWait&) = delete;
  StreamMemoryWait& operator=(const StreamMemoryWait&) = delete;
  ~StreamMemoryWait();

  CancelScope& scope() { return scope_; }
  // nullptr once that is gone.
  StreamReceiver* receiver() const { return receiver_; }

  // From the receiver.
  void EndEarly() { scope_.Request(); }
  void Forget() {
    receiver_ = nullptr;
    EndEarly();
  }

 private:
  StreamReceiver* receiver_;
  CancelScope scope_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_STREAM_PAYLOADS_H_
