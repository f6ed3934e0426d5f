// CallEvent: what a test can be told of the frames and one-sided operations of a link.

#ifndef VERBENA_TESTS_RPC_CALL_EVENT_H_
#define VERBENA_TESTS_RPC_CALL_EVENT_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::internal {

// The events of a call that can be seen outside the product, at either end of its link.
//
// "Posted": the product posts a work request, which the device has not taken yet. "Arrived" and
// "done": the product polls a completion, and has not looked at it yet. A SEND has an event for
// each of its frames. The service of a test tells of its handlers itself.
enum class CallEvent : uint8_t {
  kRequestPosted,
  kRequestArrived,
  kHandlerBegins,
  kHandlerEnds,
  kResponsePosted,
  kResponseArrived,
  // Calls with payloads have these.
  kLandingNeededPosted,
  kLandingNeededArrived,
  kLandingPosted,
  kLandingArrived,
  kOneSidedPosted,
  kOneSidedDone,
  // Streams have these.
  kMessagePosted,
  kMessageArrived,
  kWindowPosted,
  kWindowArrived,
  kEndPosted,
  kEndArrived,
  // All others: SENDs without such frames, work requests that bind and invalidate, SENDs that are
  // done.
  kOther,
};
inline constexpr size_t kCallEvents = static_cast<size_t>(CallEvent::kOther) + 1;

inline constexpr std::array kEventsOfCalls = {
    CallEvent::kRequestPosted,       CallEvent::kRequestArrived,       CallEvent::kHandlerBegins,
    CallEvent::kHandlerEnds,         CallEvent::kResponsePosted,       CallEvent::kResponseArrived,
    CallEvent::kLandingNeededPosted, CallEvent::kLandingNeededArrived, CallEvent::kLandingPosted,
    CallEvent::kLandingArrived,      CallEvent::kOneSidedPosted,       CallEvent::kOneSidedDone,
};
inline constexpr std::array kEventsOfStreams = {
    CallEvent::kRequestPosted, CallEvent::kRequestArrived, CallEvent::kHandlerBegins,
    CallEvent::kHandlerEnds,   CallEvent::kResponsePosted, CallEvent::kResponseArrived,
    CallEvent::kMessagePosted, CallEvent::kMessageArrived, CallEvent::kWindowPosted,
    CallEvent::kWindowArrived, CallEvent::kEndPosted,      CallEvent::kEndArrived,
};

const char* CallEventName(CallEvent event);

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_CALL_EVENT_H_
