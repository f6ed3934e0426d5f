// ServedCall: the parts of a server's call that both halves of its bulk use.
//
// A value of its ServerBulk, on its executor's thread.

#ifndef VERBENA_RPC_SERVER_SERVED_CALL_H_
#define VERBENA_RPC_SERVER_SERVED_CALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/call_id.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

class ServerSession;
class ServerShard;

struct ServedCall {
  // The link, if it is still there.
  absl::StatusOr<Link*> OpenLink() const;

  ServerShard* shard = nullptr;
  ServerSession* session = nullptr;
  CallId id;
  TimePoint deadline = kNever;
  RequestBulk header;  // of the request
};

// RESOURCE_EXHAUSTED if `what` has more bytes than the endpoint of `link` takes.
absl::Status CheckBulkLimit(const char* what, uint64_t bytes, const Link& link);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVED_CALL_H_
