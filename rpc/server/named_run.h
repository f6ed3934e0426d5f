// RunOnce: runs the handler of a deduplicated call for the first request with a name, and gives
// further requests its result (dedupe.h).
//
// A coroutine inside the call's interceptors, on its executor's thread. The DedupeTable bounds what
// it keeps.

#ifndef VERBENA_RPC_SERVER_NAMED_RUN_H_
#define VERBENA_RPC_SERVER_NAMED_RUN_H_

#include "absl/status/status.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/parts.h"
#include "verbena/rpc/server/response.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// A call with a name. All that it refers to outlives the run.
struct NamedCall {
  CallParts& parts;
  const MethodTable::Entry& entry;
  CallMessages& messages;
  CancelScope& cancel;
  ServerContext& context;

  const char* method_name() const { return entry.method->descriptor->full_name; }
};

// Runs the handler, or waits for the run of another request with the name, or asks the DedupeStore.
// Returns the status of the call; its outcome is in parts.carried.once(). If the Task is destroyed
// while the handler runs, requests that repeat the call get ABORTED. They hear of any end of a run
// only when no change of a file goes on that the run has left (CallParts::EndNamedRun).
// Precondition: call.parts.carried.name() is not null.
Task<absl::Status> RunOnce(NamedCall call);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_NAMED_RUN_H_
