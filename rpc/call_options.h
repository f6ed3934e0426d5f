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
  // From the call's start to its end, as the client's executor saw it.
  Duration elapsed{};
  uint32_t request_bytes = 0;  // serialized
  uint32_t reply_bytes = 0;
  // What the server answered with. After a failed call that lent a response_payload_into: that,
  // with nothing in it that means anything; or no memory, when the server may still write there.
  Buffer response_payload = {};
  // That of the request, when the server is proven to be done with it; else it goes home by itself
  // when that is so.
  Payload request_payload = {};
};

struct CallOptions {
  // The caller resumes with DEADLINE_EXCEEDED when it passes; the server is told how long is left.
  Deadline deadline = {};
  CallInfo* info = nullptr;
  // Bulk bytes of the request, for methods that take them; from Channel::AllocateBuffer(), or
  // registered with the same device. At most 8 parts.
  Payload request_payload = {};
  // Where the response's payload is to be written, size() bytes at most; such memory, too. It comes
  // back as CallInfo::response_payload.
  Buffer response_payload_into = {};
  // Without that: memory of this size is lent to the server for it. Without either the server asks
  // once it knows the size, which costs a round trip.
  uint64_t max_response_payload = 0;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CALL_OPTIONS_H_
