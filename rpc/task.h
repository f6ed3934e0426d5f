// Tasks: coroutines, ways to run several at once or elsewhere, how to cancel them, and time.
//
//   Task, Generator                            a coroutine; one that gives items one by one
//   WhenAll, WhenAny, ForEach, TaskScope       several Tasks on one executor
//   Spawn, RunOn                               a Task on any executor; on another one, awaited
//   RunBlocking                                a callable that blocks, on a thread of a pool
//   CancelScope                                asks Tasks to stop
//   Sleep, WithDeadline, DeadlineScope         time; the deadline of a call is in CallOptions
//   Mutex, Semaphore, Event, Queue             how coroutines of one executor wait for each other
//   VERBENA_CO_RETURN_IF_ERROR and its like    return errors to the caller
//
// Each included header says who owns what, on which thread, and how it fails.
//
//   auto [a, b] = co_await WhenAll(SizeOf(channel, "a"), SizeOf(channel, "b"));
//   VERBENA_CO_RETURN_IF_ERROR(co_await RunBlocking([&] { return Remove(path); }));
//   VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(std::chrono::milliseconds(5)));
//
//   Semaphore in_flight(16);
//   VERBENA_CO_RETURN_IF_ERROR(co_await in_flight.Acquire());
//   const SemaphoreHold hold(in_flight);  // releases the permit

#ifndef VERBENA_RPC_TASK_H_
#define VERBENA_RPC_TASK_H_

#include "verbena/transport/base/clock.h"         // IWYU pragma: export
#include "verbena/transport/base/status.h"        // IWYU pragma: export
#include "verbena/transport/coro/cancel.h"        // IWYU pragma: export
#include "verbena/transport/coro/combinators.h"   // IWYU pragma: export
#include "verbena/transport/coro/context.h"       // IWYU pragma: export
#include "verbena/transport/coro/generator.h"     // IWYU pragma: export
#include "verbena/transport/coro/scheduler.h"     // IWYU pragma: export
#include "verbena/transport/coro/scope.h"         // IWYU pragma: export
#include "verbena/transport/coro/sleep.h"         // IWYU pragma: export
#include "verbena/transport/coro/sync.h"          // IWYU pragma: export
#include "verbena/transport/coro/task.h"          // IWYU pragma: export
#include "verbena/transport/coro/trace.h"         // IWYU pragma: export
#include "verbena/transport/executor/blocking.h"  // IWYU pragma: export
#include "verbena/transport/executor/run_on.h"    // IWYU pragma: export
#include "verbena/transport/executor/spawn.h"     // IWYU pragma: export

#endif  // VERBENA_RPC_TASK_H_
