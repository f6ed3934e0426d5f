// ServerBulk: the payloads of a server's call, and its messages that are too large for a frame.
//
// Part of a ServerCall, on its executor's thread, and empty again after each call. The server reads
// and writes nothing more after the response: the client's leases rely on that.

#ifndef VERBENA_RPC_SERVER_SERVER_BULK_H_
#define VERBENA_RPC_SERVER_SERVER_BULK_H_

#include <cstddef>

#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/call_id.h"
#include "verbena/rpc/server/fetched_request.h"
#include "verbena/rpc/server/grants_given.h"
#include "verbena/rpc/server/served_call.h"
#include "verbena/rpc/server/written_response.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

class ServerSession;
class ServerShard;

class ServerBulk final {
 public:
  ServerBulk() = default;
  ServerBulk(const ServerBulk&) = delete;
  ServerBulk& operator=(const ServerBulk&) = delete;

  // `landing` holds the payload if it has memory; a payload in the frame is copied from `in_frame`.
  void Begin(ServerShard& shard, ServerSession& session, CallId id, TimePoint deadline,
             const RequestBulk& header, UsedGrant landing, const char* in_frame);
  // The call is over, or its link is.
  void Clear();

  // The room in the response's frame that the caller asked for its payload.
  size_t room_in_frame() const {
    return call_.header.room_in_frame ? call_.header.landing.bytes : 0;
  }
  FetchedRequest& request() { return request_; }
  const FetchedRequest& request() const { return request_; }
  WrittenResponse& response() { return response_; }
  const WrittenResponse& response() const { return response_; }

 private:
  ServedCall call_;
  FetchedRequest request_{call_};
  WrittenResponse response_{call_};
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVER_BULK_H_
