// The shape of a method: which sides stream, and which messages have payloads.
//
// A server tells its clients the shape of each method when a link begins. So a client whose .proto
// differs fails its calls of that method alone, before they leave. Pure functions; any thread.

#ifndef VERBENA_RPC_CALL_METHOD_SHAPE_H_
#define VERBENA_RPC_CALL_METHOD_SHAPE_H_

#include <cstdint>
#include <string>

#include "verbena/rpc/call.h"

namespace verbena::internal {

// The byte that stands for it on the wire (proto/WIRE.md, section 1).
uint8_t ShapeOf(const MethodDescriptor& method);

// Why a client that has a method in the shape `client` cannot call it at a server that has it in
// the shape `server`, as a part of a sentence; empty if it can. Both are values of ShapeOf(). The
// sides must stream alike. A payload is never a must: a side that knows of payloads also takes
// messages without one, but not the other way round.
std::string ShapeConflict(uint8_t client, uint8_t server);

// Each message that tells of a conflict ends with what to do about it.
inline constexpr char kFitProtos[] =
    "build both sides from one .proto, and restart them in the order of docs/upgrades.md (Change "
    "your .proto)";

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_METHOD_SHAPE_H_
