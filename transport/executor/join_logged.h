// JoinLogged: joins a TaskScope at a shutdown, which goes on whatever the scope's tasks threw.

#ifndef VERBENA_TRANSPORT_EXECUTOR_JOIN_LOGGED_H_
#define VERBENA_TRANSPORT_EXECUTOR_JOIN_LOGGED_H_

#include <string>

#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/task_scope.h"

namespace verbena::internal {

// Waits until `scope` has no child left. Logs the first exception of one, as that of a task of
// `owner`, and never throws it.
Task<void> JoinLogged(TaskScope& scope, std::string owner);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_JOIN_LOGGED_H_
