// ReopenBackoff: how often a device that has failed is opened again.
//
// A part of RuntimeOptions, which Runtime::Start() copies. Unless 0 < first <= longest, Start()
// returns INVALID_ARGUMENT.
//
//   Runtime::Start({.reopen = {.longest = std::chrono::minutes(2)}});

#ifndef VERBENA_RPC_REOPEN_BACKOFF_H_
#define VERBENA_RPC_REOPEN_BACKOFF_H_

#include <chrono>

#include "verbena/transport/base/clock.h"

namespace verbena {

// Pauses before attempts, give or take a fifth: each is twice the one before.
struct ReopenBackoff {
  Duration first = std::chrono::milliseconds(100);
  // The longest pause. If a device served for this long before it failed again, the pauses begin
  // with `first` anew.
  Duration longest = std::chrono::seconds(30);
};

}  // namespace verbena

#endif  // VERBENA_RPC_REOPEN_BACKOFF_H_
