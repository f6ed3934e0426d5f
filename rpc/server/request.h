// ParseRequest: a REQUEST that a peer sends, as bytes, into values.
//
// A pure function, which takes any bytes and names what is wrong; proto/WIRE.md is the
// specification. tests/fuzz/request_fuzz.cc feeds it. The caller judges what the values ask for.

#ifndef VERBENA_RPC_SERVER_REQUEST_H_
#define VERBENA_RPC_SERVER_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

// The bounds that the link sets for a request.
struct RequestRules {
  size_t max_body_bytes;  // of a frame to the client; at least ResponseBulk::kEncodedBytes
  ContextFeatures context_features = {};
};

// A request's values. The views refer to the frame's body, and are valid as long as it is.
struct IncomingRequest {
  CallId id;
  uint64_t time_left_us = 0;  // until its deadline, as the peer claims; 0: it has none
  uint16_t method = 0;        // by the number of the handshake
  // Which sides send a stream. `apart`: the request comes as a message of that stream.
  Streams streams = Streams::kNone;
  bool apart = false;
  bool has_context = false;
  ContextHeader context_header;
  CallContext context;              // empty if the block travels
  std::optional<RequestBulk> bulk;  // unset: nothing is one-sided, and the frame has no payload
  const char* payload_in_frame = nullptr;
  bool message_in_frame = true;
  std::string_view message;  // the rest of the body

  // The bytes of the context block that travels; 0 if none does.
  size_t traveling_context_bytes() const {
    return context_header.travels ? context_header.block_bytes : 0;
  }
};

// `frame` has the kind kRequest, flags that such frames may have, and a `body` of
// frame.body_bytes. `into` is new: fields that the frame does not set keep their defaults. A failed
// Status, INVALID_ARGUMENT, is a violation of the protocol; `into` then has no meaning.
absl::Status ParseRequest(const FrameHeader& frame, const char* body, const RequestRules& rules,
                          IncomingRequest& into);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_REQUEST_H_
