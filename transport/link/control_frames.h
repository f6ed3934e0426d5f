// ControlFrames: which of a link's control frames are due, and how many have travelled.
//
// At most one of each kind is due at a time, and leaves with a flush: a later reason for the same
// frame adds nothing. Part of a LinkSender, on its executor's thread.

#ifndef VERBENA_TRANSPORT_LINK_CONTROL_FRAMES_H_
#define VERBENA_TRANSPORT_LINK_CONTROL_FRAMES_H_

#include <cstdint>

namespace verbena::internal {

struct ControlFrames {
  // A flush sends at most one of each.
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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_CONTROL_FRAMES_H_
