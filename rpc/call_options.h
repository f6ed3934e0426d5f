// CallOptions: what a caller may say about one call; CallInfo: what it may learn.
//
// Aggregates for designated initialisers. The order of CallOptions' fields is frozen, new ones go
// at the end, and each has a default. Move-only, since a payload has one owner.
//
//   CallInfo info;
//   co_await stub.Write(request, reply, {.info = &info, .request_payload = std::move(block)});
//   block = info.request_payload.TakeBuffer();

#ifndef VERBENA_RPC_CALL_OPTIONS_H_
#define VERBENA_RPC_CALL_OPTIONS_H_

#include <cstdint>

#include "verbena/rpc/deadline.h"
#include "verbena/rpc/payload.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// Filled when the call ends, well or badly. Belongs to the caller and must live until then.
struct CallInfo {
  // From the call's start to its end, connecting included, by the clock of the client's executor.
  Duration elapsed{};
  uint32_t request_bytes = 0;  // serialized, however it travelled
  uint32_t reply_bytes = 0;
  // The payload of the server's answer. After a failed call that leased response_payload_into: that
  // Buffer, with undefined content, if the server provably cannot write to it any more. Otherwise
  // empty: the memory returns to its pool later.
  Buffer response_payload = {};
  // The request's payload, if the server provably no longer uses it. Otherwise empty: the memory
  // returns to its pool later.
  Payload request_payload = {};
  // Whether the server answered with a payload. If that payload is empty, response_payload has no
  // bytes and may have no memory.
  bool has_response_payload = false;
};

struct CallOptions {
  // The caller resumes with DEADLINE_EXCEEDED when it passes; the server is told how long is left.
  // The default is ChannelOptions::default_deadline.
  Deadline deadline = {};
  // Receives sizes and payloads. Required if the method has a response payload: otherwise the call
  // fails with INVALID_ARGUMENT.
  CallInfo* info = nullptr;
  // The request's payload, for methods that take one, in at most 8 parts. Its memory comes from
  // Channel::AllocateBuffer(), or from Runtime::RegisterMemory() with the channel's device. The
  // default is no payload; Payload::Empty() is a payload of no bytes. The handler can tell them
  // apart.
  Payload request_payload = {};
  // Memory for the response's payload, of the same kind; the server writes at most size() bytes to
  // it. It comes back as CallInfo::response_payload.
  Buffer response_payload_into = {};
  // Without response_payload_into: the client allocates this many bytes for the response's payload.
  // A larger payload fails with RESOURCE_EXHAUSTED, after the handler has run.
  // Without either, the server asks for memory once it knows the size, which costs a round trip.
  uint64_t max_response_payload = 0;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CALL_OPTIONS_H_
