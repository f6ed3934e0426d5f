// StreamListener: hears of each message of a stream, in order, once.
//
// Set for the halves of a stream, which it outlives. Called on the stream's executor, within the
// transport: it must neither throw nor use the stream.

#ifndef VERBENA_RPC_STREAM_STREAM_LISTENER_H_
#define VERBENA_RPC_STREAM_STREAM_LISTENER_H_

#include "verbena/rpc/call/protobuf.h"

namespace verbena::internal {

class StreamListener {
 public:
  virtual ~StreamListener() = default;
  // A Write's message begins to leave.
  virtual void OnSent(const MessageLite& message) noexcept = 0;
  // A Read has a message.
  virtual void OnReceived(const MessageLite& message) noexcept = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_STREAM_LISTENER_H_
