// RequestShares: the bytes that a request's payload takes of what its client and its client's
// source may have.
//
// Part of a FetchedRequest, on its executor's thread. The bytes are taken before the payload gets
// memory, and returned when the handler has ended.

#ifndef VERBENA_RPC_SERVER_REQUEST_SHARES_H_
#define VERBENA_RPC_SERVER_REQUEST_SHARES_H_

#include <cstddef>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class ServerClient;
class ServerSession;

class RequestShares {
 public:
  // Takes both shares. False, and nothing is taken, if one is missing.
  bool TryTake(ServerClient& client, size_t bytes);
  // Waits for both shares, of which neither is taken yet. The session asks its clients for unused
  // landings if the source lacks bytes. `session` outlives the Task.
  Task<absl::Status> Take(ServerSession& session, size_t bytes);
  // Says which share Take() did not get within `waited`.
  absl::Status NotTaken(ServerClient& client, size_t bytes, Duration waited) const;
  // Returns what was taken, if anything was.
  void Return(ServerClient& client);

 private:
  size_t of_client_ = 0;
  size_t of_source_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_REQUEST_SHARES_H_
