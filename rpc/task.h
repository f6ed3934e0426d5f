// Tasks: coroutines, ways to run several at once or elsewhere, and how to cancel them.
//
// A Task runs when it is awaited. A Generator gives items one by one. TaskScope, WhenAll, WhenAny
// and ForEach run several Tasks on one executor. RunOn runs a Task on another executor. Spawn
// starts a Task on any executor and returns a JoinHandle. RunBlocking runs a callable that blocks,
// on a thread of a pool. CancelScope asks Tasks to stop. The status macros return errors to the
// caller.
//
//   auto [a, b] = co_await WhenAll(SizeOf(channel, "a"), SizeOf(channel, "b"));
//   VERBENA_CO_RETURN_IF_ERROR(co_await RunBlocking([&] { return Remove(path); }));

#ifndef VERBENA_RPC_TASK_H_
#define VERBENA_RPC_TASK_H_

#include "verbena/transport/base/status.h"        // IWYU pragma: export
#include "verbena/transport/coro/cancel.h"        // IWYU pragma: export
#include "verbena/transport/coro/combinators.h"   // IWYU pragma: export
#include "verbena/transport/coro/context.h"       // IWYU pragma: export
#include "verbena/transport/coro/generator.h"     // IWYU pragma: export
#include "verbena/transport/coro/scheduler.h"     // IWYU pragma: export
#include "verbena/transport/coro/scope.h"         // IWYU pragma: export
#include "verbena/transport/coro/sleep.h"         // IWYU pragma: export
#include "verbena/transport/coro/task.h"          // IWYU pragma: export
#include "verbena/transport/coro/trace.h"         // IWYU pragma: export
#include "verbena/transport/executor/blocking.h"  // IWYU pragma: export
#include "verbena/transport/executor/run_on.h"    // IWYU pragma: export
#include "verbena/transport/executor/spawn.h"     // IWYU pragma: export

#endif  // VERBENA_RPC_TASK_H_
