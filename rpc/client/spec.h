// CallSpec: all of a unary call before it is sent. CallBuffers: its caller's memory for payloads.
//
// Both live as long as the call, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_SPEC_H_
#define VERBENA_RPC_CLIENT_SPEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/fence.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class ClientChannel;

// The memory that a call's caller gives, and the variables in which it gets memory back.
//
// An attempt takes the memory, and gives it back when it has ended; Return() gives it to the caller
// when the call has ended. A payload may be sent again while the server of a failed attempt still
// reads it, since nobody changes it: it does not return to the caller then. Memory for the response
// must be the next attempt's alone.
class CallBuffers {
 public:
  // The memory of `options`, which outlive this. Empties the caller's variables: what a former call
  // left does not outlive the beginning of this one.
  CallBuffers(CallOptions& options, PayloadSink received);
  CallBuffers(const CallBuffers&) = delete;
  CallBuffers& operator=(const CallBuffers&) = delete;

  // An attempt takes the memory.
  Payload TakePayload() { return std::exchange(options_.request_payload, Payload()); }
  Buffer TakeRoom() { return std::exchange(options_.response_payload_into, Buffer()); }
  // The attempt has ended. `may_be_read`: its server may still read the payload.
  void GiveBack(Payload payload, bool may_be_read) {
    (may_be_read ? lent_ : options_.request_payload) = std::move(payload);
  }
  // The attempt has failed, and nobody can write to the memory for the response any more.
  void GiveBackRoom(Buffer room) { options_.response_payload_into = std::move(room); }
  void SetResponse(Buffer payload, bool present) { received_.Set(std::move(payload), present); }

  // Whether the memory for the response is the caller's own, who also gets it after a failure.
  bool gave_room() const { return gave_room_; }
  // Whether another attempt can have the memory after one that failed.
  bool is_back() const { return payload_is_back() && room_is_back(); }
  bool payload_is_back() const {
    return !gave_payload_ || options_.request_payload.present() || lent_.present();
  }
  // Another attempt follows. It has the memory for the response also if the one before ended well,
  // and an interceptor made a failure of that; nothing is left of its payload.
  void TakeBack();
  // The call has ended.
  void Return();

 private:
  bool room_is_back() const {
    return !gave_room() || options_.response_payload_into || filled() != nullptr;
  }
  // What an attempt that ended well has given the caller; null if there is none.
  Buffer* filled() const {
    return received_.payload != nullptr && *received_.payload ? received_.payload : nullptr;
  }

  CallOptions& options_;
  const PayloadSink received_;
  Payload lent_;  // in place of the payload, if a server may still read it
  const bool gave_payload_;
  const bool gave_room_;
  bool was_lent_ = false;      // after an attempt before
  const uint32_t room_bytes_;  // of the caller's memory for the response; of more the first 4 GiB
};

// Gives an attempt the context block that it has instead of its options' when it begins.
class ContextSource {
 public:
  virtual CallContext Start() = 0;

 protected:
  ~ContextSource() = default;
};

// References, all of which are borrowed until the call ends. Cheap to copy: each attempt has its
// own.
struct CallSpec {
  ClientChannel* channel;
  const MethodDescriptor& method;
  const MessageLite& request;
  MessageLite& reply;
  // All attempts share them. `deadline` and `info` hold in place of their fields.
  CallOptions& options;
  CallBuffers& buffers;
  TimePoint deadline = kNever;
  CallInfo* info = nullptr;
  // Another attempt may follow, which needs the metadata, too.
  bool keeps_metadata = false;
  // If the link is lost before the request has left, the call is sent once more over another
  // connection.
  bool may_repeat = true;
  // Not null: the server that the channel finds for the attempt joins it.
  TriedServers* tried = nullptr;
  // Not null: keeps the attempts of the call apart, and bounds this one's time.
  AttemptFence* fence = nullptr;
  ContextSource* context_source = nullptr;
};

// When the attempt is to end, of which its server hears.
inline TimePoint LimitOf(const CallSpec& spec) {
  return spec.fence == nullptr ? spec.deadline : std::min(spec.deadline, spec.fence->limit());
}

// The context block of an attempt in `scope`, which may be null.
CallContext ContextOf(const CallSpec& spec, const CancelScope* scope);

// Waits for a connection for the attempt. An error has Outcome::kNotExecuted. Never inlined:
// otherwise the frame of each attempt would contain the frame of this wait.
[[gnu::noinline]] VERBENA_CORO_WRAPPER Task<absl::StatusOr<ConnectionUse>> RouteOf(
    const CallSpec& spec);

// Whether a call may send `context`. INVALID_ARGUMENT if an entry of the metadata, or the trace,
// may not be sent; RESOURCE_EXHAUSTED if the metadata takes more than `max_metadata_bytes`.
absl::Status CheckContext(const CallContext& context, size_t max_metadata_bytes);
// Whether the method and the channel take what the call brings, with `context`.
absl::Status CheckSpec(const CallSpec& spec, const CallContext& context);

// Whether `options` name a payload, or room for one.
inline bool HasPayloads(const CallOptions& options) {
  return options.request_payload.present() || options.response_payload_into ||
         options.max_response_payload != 0;
}
// The same, or whether `method` has payloads.
inline bool HasPayloads(const MethodDescriptor& method, const CallOptions& options) {
  return method.payloads != Payloads::kNone || HasPayloads(options);
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_SPEC_H_
