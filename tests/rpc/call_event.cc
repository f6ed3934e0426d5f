#include "tests/rpc/call_event.h"

#include <array>
#include <cstddef>

namespace verbena::internal {

const char* CallEventName(CallEvent event) {
  constexpr std::array<const char*, kCallEvents> kNames = {
      "request_posted",
      "request_arrived",
      "handler_begins",
      "handler_ends",
      "response_posted",
      "response_arrived",
      "landing_needed_posted",
      "landing_needed_arrived",
      "landing_posted",
      "landing_arrived",
      "one_sided_posted",
      "one_sided_done",
      "message_posted",
      "message_arrived",
      "window_posted",
      "window_arrived",
      "end_posted",
      "end_arrived",
      "other",
  };
  return kNames[static_cast<size_t>(event)];
}

}  // namespace verbena::internal
