// Spawn: starts a Task that nobody waits for, on an executor.
//
// From any thread; the Task starts in a later turn of the executor's loop, never inline. The
// executor owns it: it is destroyed when it ends, or unfinished when the executor is. An exception
// that it throws is logged. The number of such Tasks is not bounded here: it is for the few roots
// of a program (an accept loop, a background job). A Task per request belongs in a TaskScope, which
// can be joined and bounded.
//
//   Spawn(executor, AcceptLoop(server));

#ifndef VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_
#define VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_

#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {

void Spawn(Executor& executor, Task<void> task);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_
