// CallOptions: what a caller may say about one call; CallInfo: its time, sizes and trailing
// metadata.
//
// Aggregates for designated initialisers. The order of CallOptions' fields is frozen, new ones go
// at the end, and each has a default. Move-only, since a payload has one owner.
//
//   Payload block = std::move(buffer);
//   co_await stub.Write(request, reply,
//                       {.request_payload = std::move(block), .returned_payload = &block});

#ifndef VERBENA_RPC_CALL_OPTIONS_H_
#define VERBENA_RPC_CALL_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "verbena/rpc/call_context.h"
#include "verbena/rpc/deadline.h"
#include "verbena/rpc/metadata.h"
#include "verbena/rpc/payload.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class DedupeToken;

// Emptied when the call begins, and filled when it ends, well or badly. Belongs to the caller and
// must live until then.
struct CallInfo {
  // From the call's start to its end, by the clock of the client's executor. Connecting counts, and
  // so do the interceptors of a unary call. 0 on a thread that runs no executor.
  Duration elapsed{};
  // Bytes of the serialized messages, in a frame or as bulk. The messages of a side that streams do
  // not count.
  uint32_t request_bytes = 0;
  uint32_t reply_bytes = 0;
  // Metadata that the handler added to its answer, also to a failure; empty if no answer came.
  Metadata trailing_metadata = {};
};

// Streams take all options except payloads, which end the stream with INVALID_ARGUMENT.
struct CallOptions {
  // The caller resumes with DEADLINE_EXCEEDED when it passes; the server is told how long is left.
  // The default is ChannelOptions::default_deadline. If the Task that makes the call has an earlier
  // deadline, as a handler or WithDeadline() gives it one, that holds (see `inherit`).
  Deadline deadline = {};
  // Receives time, sizes and trailing metadata, if not null. Must live until the call ends.
  CallInfo* info = nullptr;
  // The request's payload, for methods that take one, in at most 8 parts. Its memory comes from
  // Channel::AllocateBuffer(), or from Runtime::RegisterMemory() with the channel's device. The
  // default is no payload; Payload::Empty() is a payload of no bytes. The handler can tell them
  // apart.
  Payload request_payload = {};
  // Memory for the response's payload, of the same kind; the server writes at most size() bytes to
  // it. It comes back as WithPayload::payload. If the call fails, its content is undefined. A
  // failed call that fills its caller's WithPayload leaves the memory there if the server provably
  // cannot write to it any more. In all other failed calls the memory returns to its pool, at once
  // or later.
  Buffer response_payload_into = {};
  // Without response_payload_into: the most bytes that the response's payload may have, for which
  // the client allocates memory. A larger payload fails with RESOURCE_EXHAUSTED, after the handler
  // has run. Without either, the server asks for memory once it knows the size, which costs a round
  // trip, unless the payload fits a frame.
  uint64_t max_response_payload = 0;
  // Not null: receives request_payload when the call ends, well or badly, if the server provably no
  // longer uses it. Otherwise its memory returns to its pool later. `*returned_payload` is emptied
  // when the call begins, and must live until the call ends.
  Payload* returned_payload = nullptr;
  // Metadata for the handler; the default is none. An entry that may not be sent fails the call
  // with INVALID_ARGUMENT, and more than ChannelOptions::max_metadata_bytes with
  // RESOURCE_EXHAUSTED, before anything is sent (metadata.h).
  Metadata metadata = {};
  // How urgent the call is; normal by default.
  Priority priority = Priority::kNormal;
  // The context that the call takes over from the Task that makes it: by default all of it.
  Inherit inherit = Inherit::kAll;
  // A name of the caller's choice, the same in each attempt, which the handler sees. Verbena does
  // nothing else with it: `dedupe` is for calls that must not run twice. The default is none.
  std::optional<RequestId> request_id = {};
  // The call goes to the server of a set that this key belongs to (Balancing::kRouteKey). Other
  // channels ignore it. The default is no key; 0 is one.
  std::optional<uint64_t> route_key = {};
  // True: while no server can be reached, the call waits for one until its deadline, instead of
  // failing when the attempts to connect have failed. It still fails for a reason that does not
  // pass, such as INVALID_ARGUMENT for the target.
  bool wait_for_ready = false;
  // The token of the call, the same in each attempt, for methods marked `dedupe` (dedupe.h). Null,
  // the default: the call is one attempt, with a token of its own. It must outlive the attempt.
  DedupeToken* dedupe = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CALL_OPTIONS_H_
