// CallStep: the steps of a call at which a test may cut its link, or end its process.
//
// AtStep() calls the hook that a test has set, with the call's link, on the executor's thread. The
// hook may break the link's queue pair, but must not close the link itself. Programs compiled with
// NDEBUG have no hook, and pay nothing.

#ifndef VERBENA_RPC_CALL_CALL_STEP_H_
#define VERBENA_RPC_CALL_CALL_STEP_H_

#include <atomic>
#include <cstdint>

#include "verbena/transport/link/link.h"

namespace verbena::internal {

enum class CallStep : uint8_t {
  // The client's.
  kRequestBegins,    // it has a slot, and nothing is in the link yet
  kRequestAppended,  // it will leave with the next post
  kLandingGiven,
  kResponseArrived,  // and was not looked at
  // The server's.
  kRequestArrived,    // and was not looked at
  kHandlerStarts,     // its payload has arrived
  kHandlerEnded,      // and nothing of its result is in the link yet
  kLandingAsked,      // for a response
  kResponseAppended,  // it will leave with the next post
  // Steps of streams alone, on either side.
  kMessageAppended,  // or a part of one: it will leave with the next post
  kMessageArrived,   // and was not looked at
  kWindowAppended,
  kWindowArrived,
  kEndAppended,  // the client's
  kEndArrived,
};
// The steps of calls that are no streams.
inline constexpr int kCallSteps = 9;
// The same with those of streams.
inline constexpr int kAllSteps = 15;

using StepHook = void (*)(CallStep step, Link& link);

inline std::atomic<StepHook> step_hook = nullptr;

// `link` is null once the link is lost.
inline void AtStep([[maybe_unused]] CallStep step, [[maybe_unused]] Link* link) {
#ifndef NDEBUG
  const StepHook hook = step_hook.load(std::memory_order_acquire);
  if (hook != nullptr && link != nullptr) [[unlikely]]
    hook(step, *link);
#endif
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_CALL_STEP_H_
