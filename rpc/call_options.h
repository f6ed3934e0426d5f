// CallOptions: what a caller may say about one call; CallInfo: what it may learn.
//
// An aggregate for designated initialisers. The order of fields is frozen, new ones go at the end,
// and each has a default.

#ifndef VERBENA_RPC_CALL_OPTIONS_H_
#define VERBENA_RPC_CALL_OPTIONS_H_

#include <cstdint>

#include "verbena/rpc/deadline.h"
#include "verbena/transport/coro/clock.h"

namespace verbena {

// Filled when the call ends, well or badly. Belongs to the caller and must live until then.
struct CallInfo {
  // From the call's start to its end, as the client's executor saw it.
  Duration elapsed{};
  uint32_t request_bytes = 0;  // serialized
  uint32_t reply_bytes = 0;
};

struct CallOptions {
  // The caller resumes with DEADLINE_EXCEEDED when it passes; the server is told how long is left.
  Deadline deadline = {};
  CallInfo* info = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CALL_OPTIONS_H_
