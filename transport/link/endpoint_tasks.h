// EndpointTasks: the coroutines that an endpoint has under way.
//
// Part of an Endpoint, on its executor's thread. Shutdown() joins both scopes: no task outlives the
// endpoint. An exception that leaves a task is logged there.

#ifndef VERBENA_TRANSPORT_LINK_ENDPOINT_TASKS_H_
#define VERBENA_TRANSPORT_LINK_ENDPOINT_TASKS_H_

#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/turn_pacer.h"
#include "verbena/transport/link/links.h"

namespace verbena::internal {

struct EndpointTasks {
  explicit EndpointTasks(Executor& executor)
      : teardown_pacer(executor, kTeardownStepsPerTurn), links(executor), holds(executor) {}

  TurnPacer teardown_pacer;
  TaskScope links;  // watches of bootstrap streams, refills of windows, and teardowns
  TaskScope holds;  // memory that a lost link's peer may still write to; replacing queues
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ENDPOINT_TASKS_H_
