// Tasks: coroutines, ways to run several at once or elsewhere, and how to cancel them.
//
// A Task runs when it is awaited. TaskScope, WhenAll and WhenAny run several Tasks on one executor.
// RunOn runs a Task on another executor. RunBlocking runs a callable that blocks, on a thread of a
// pool. CancelScope asks Tasks to stop. The status macros return errors to the caller.
//
//   auto [a, b] = co_await WhenAll(SizeOf(channel, "a"), SizeOf(channel, "b"));
//   VERBENA_CO_RETURN_IF_ERROR(co_await RunBlocking([&] { return Remove(path); }));

#ifndef VERBENA_RPC_TASK_H_
#define VERBENA_RPC_TASK_H_

#include "verbena/transport/coro/cancel.h"            // IWYU pragma: export
#include "verbena/transport/coro/context.h"           // IWYU pragma: export
#include "verbena/transport/coro/scheduler.h"         // IWYU pragma: export
#include "verbena/transport/coro/status_macros.h"     // IWYU pragma: export
#include "verbena/transport/coro/task.h"              // IWYU pragma: export
#include "verbena/transport/coro/task_scope.h"        // IWYU pragma: export
#include "verbena/transport/coro/when_all.h"          // IWYU pragma: export
#include "verbena/transport/coro/when_any.h"          // IWYU pragma: export
#include "verbena/transport/coro/yield.h"             // IWYU pragma: export
#include "verbena/transport/executor/run_blocking.h"  // IWYU pragma: export
#include "verbena/transport/executor/run_on.h"        // IWYU pragma: export
#include "verbena/transport/executor/spawn.h"         // IWYU pragma: export

#endif  // VERBENA_RPC_TASK_H_
