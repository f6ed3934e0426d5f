// Time: Clock, TimePoint and Duration; Sleep; and deadlines of Tasks.
//
// WithDeadline and DeadlineScope bound any Task. The deadline of a call is CallOptions::deadline.
//
//   VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(std::chrono::milliseconds(5)));
//   absl::Status copied = co_await WithDeadline(CopyAll(channel), std::chrono::seconds(30));

#ifndef VERBENA_RPC_TIME_H_
#define VERBENA_RPC_TIME_H_

#include "verbena/transport/base/clock.h"    // IWYU pragma: export
#include "verbena/transport/coro/context.h"  // IWYU pragma: export
#include "verbena/transport/coro/sleep.h"    // IWYU pragma: export

#endif  // VERBENA_RPC_TIME_H_
