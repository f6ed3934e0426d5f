#include "verbena/rpc/server/server_bulk.h"

#include <utility>

namespace verbena::internal {

void ServerBulk::Begin(ServerShard& shard, ServerSession& session, CallId id, TimePoint deadline,
                       const RequestBulk& header, UsedGrant landing, const char* in_frame) {
  call_.shard = &shard;
  call_.session = &session;
  call_.id = id;
  call_.deadline = deadline;
  call_.header = header;
  request_.Begin(std::move(landing), in_frame);
}

void ServerBulk::Clear() {
  response_.Clear();
  request_.Clear();
  RequestBulk& header = call_.header;
  header.source_count = 0;
  header.has_payload = header.payload_in_frame = header.room_in_frame = false;
  header.payload_bytes = header.message_bytes = 0;
  header.landing = {};
}

}  // namespace verbena::internal
