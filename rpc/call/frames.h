// The headers of the frames that the RPC layer sends, one factory for each kind (proto/WIRE.md);
// and CallId, the id of a call in them.
//
// Pure functions. A call's frames carry its id, so that late ones are told apart; the frames of a
// grant carry its slot.

#ifndef VERBENA_RPC_CALL_FRAMES_H_
#define VERBENA_RPC_CALL_FRAMES_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

// On one link. Slots are below this.
inline constexpr uint32_t kMaxCallsInFlight = 1u << 16;

// CallId: a call's slot in its client's table, and the slot's generation, which tells its frames
// from late frames of an earlier call. Both travel in each frame of the call.
struct CallId {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

// For the factories below.
inline FrameHeader CallFrame(FrameKind kind, CallId id) {
  VERBENA_DCHECK(id.slot < kMaxCallsInFlight) << "slot " << id.slot;
  FrameHeader frame;
  frame.kind = kind;
  frame.call_slot = static_cast<uint16_t>(id.slot);
  frame.call_generation = id.generation;
  return frame;
}

inline FrameHeader GrantSlotFrame(FrameKind kind, uint32_t slot) {
  FrameHeader frame;
  frame.kind = kind;
  frame.argument = slot;
  return frame;
}

// --- From the client

// Its body is the request's message. The caller adds the deadline, if there is one.
inline FrameHeader RequestFrame(CallId id, uint16_t method) {
  FrameHeader frame = CallFrame(FrameKind::kRequest, id);
  frame.method = method;
  return frame;
}

inline FrameHeader CancelFrame(CallId id) { return CallFrame(FrameKind::kCancel, id); }

inline FrameHeader LandingFrame(CallId id) { return CallFrame(FrameKind::kLanding, id); }

inline FrameHeader ReturnFrame(uint32_t slot) { return GrantSlotFrame(FrameKind::kReturn, slot); }

inline FrameHeader StreamEndFrame(CallId id) { return CallFrame(FrameKind::kStreamEnd, id); }

// --- From both

// Its body is a message, or a part of one. If a message with a payload begins in it, `payload` is
// one more than the payload's bytes; otherwise 0. It travels in the field that holds a request's
// deadline.
inline FrameHeader StreamMessageFrame(CallId id, uint32_t payload = 0) {
  FrameHeader frame = CallFrame(FrameKind::kStreamMessage, id);
  frame.deadline_us = payload;
  return frame;
}
inline uint32_t StreamPayloadOf(const FrameHeader& frame) { return frame.deadline_us; }

// The outcome field of a kStreamMessage says which windows it counts in: those of its stream and of
// the link, that of its stream alone, or, for a frame beside the messages, none (BesideSender).
inline constexpr uint8_t kCountsInLink = 0;
inline constexpr uint8_t kCountsInStreamAlone = 1;
inline constexpr uint8_t kBesideMessages = 2;

inline FrameHeader BesideFrame(CallId id) {
  FrameHeader frame = StreamMessageFrame(id);
  frame.outcome = kBesideMessages;
  return frame;
}

inline FrameHeader StreamWindowFrame(CallId id, uint32_t limit) {
  FrameHeader frame = CallFrame(FrameKind::kStreamWindow, id);
  frame.argument = limit;
  return frame;
}

// The window of all streams of the link.
inline FrameHeader LinkWindowFrame(uint32_t limit) {
  FrameHeader frame = StreamWindowFrame({}, limit);
  frame.flags = kFrameOfLink;
  return frame;
}

// --- From the server

// Its body is the reply's message.
inline FrameHeader ResponseFrame(CallId id) { return CallFrame(FrameKind::kResponse, id); }

// A call that failed. Its body holds as much of the status as fits (status_codec.h).
inline FrameHeader FailureFrame(CallId id, absl::StatusCode code, Outcome outcome) {
  VERBENA_DCHECK(code != absl::StatusCode::kOk) << "a call that failed with OK";
  FrameHeader frame = ResponseFrame(id);
  frame.status_code = static_cast<uint8_t>(code);
  frame.outcome = static_cast<uint8_t>(outcome);
  return frame;
}

inline FrameHeader LandingNeededFrame(CallId id) {
  return CallFrame(FrameKind::kLandingNeeded, id);
}

inline FrameHeader GrantFrame(uint32_t slot) { return GrantSlotFrame(FrameKind::kGrant, slot); }

inline FrameHeader RevokeFrame(uint32_t slot) { return GrantSlotFrame(FrameKind::kRevoke, slot); }

inline FrameHeader GoAwayFrame() {
  FrameHeader frame;
  frame.kind = FrameKind::kGoAway;
  return frame;
}

// The time that a call has left, as it travels in its request.

// At least 1, since 0 means that there is no deadline.
inline uint64_t RemainingUs(TimePoint deadline, TimePoint now) {
  const int64_t left =
      std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
  return static_cast<uint64_t>(std::max<int64_t>(left, 1));
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_FRAMES_H_
