// ControlFrames: which of a link's control frames are due, and how many have travelled. Beside it,
// the headers of these frames.
//
// At most one of each kind is due at a time, and leaves with a flush: a later reason for the same
// frame adds nothing. Part of a LinkSender, on its executor's thread.

#ifndef VERBENA_TRANSPORT_LINK_CONTROL_FRAMES_H_
#define VERBENA_TRANSPORT_LINK_CONTROL_FRAMES_H_

#include <cstdint>

#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

struct ControlFrames {
  // The number of kinds. A flush sends at most one frame of each.
  static constexpr uint32_t kKinds = 3;

  bool pong = false;
  bool ping = false;
  bool recall = false;
  // The answer to a RECALL: a SEND, whatever it carries.
  bool answer = false;
  // PING, PONG and RECALL that have travelled, in both directions.
  uint64_t count = 0;

  // Whether a frame is due. `answer` is not one: any SEND will do.
  bool any_due() const { return pong || ping || recall; }
};

inline FrameHeader PingFrame() {
  FrameHeader frame;
  frame.kind = FrameKind::kPing;
  return frame;
}

inline FrameHeader PongFrame() {
  FrameHeader frame;
  frame.kind = FrameKind::kPong;
  return frame;
}

// The peer must return unspent credits until it has returned `limit` in all, modulo 2^32.
inline FrameHeader RecallFrame(uint32_t limit) {
  FrameHeader frame;
  frame.kind = FrameKind::kRecall;
  frame.argument = limit;
  return frame;
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_CONTROL_FRAMES_H_
