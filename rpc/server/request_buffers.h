// RequestBuffers: memory for the payloads of a stream's messages at its server.
//
// Receive memory, within what the client and its source may have for payloads of requests
// (ServerOptions::max_bytes_per_client and max_bytes_per_source). A payload counts until its memory
// is free, also while the handler keeps it. Part of a ServedStream, on its executor's thread.

#ifndef VERBENA_RPC_SERVER_REQUEST_BUFFERS_H_
#define VERBENA_RPC_SERVER_REQUEST_BUFFERS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "verbena/rpc/stream/stream_payloads.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class ServerSession;
class ServerShard;

class RequestBuffers final : public StreamBuffers {
 public:
  // A stream begins. Both are used while its handler runs; `deadline` is the call's.
  void Begin(ServerShard& shard, ServerSession& session, TimePoint deadline) {
    shard_ = &shard;
    session_ = &session;
    deadline_ = deadline;
  }

  // UNAVAILABLE once the link is lost.
  absl::StatusOr<Buffer> TryAllocate(size_t bytes) override;
  Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) override;

 private:
  ServerShard* shard_ = nullptr;
  ServerSession* session_ = nullptr;
  TimePoint deadline_ = kNever;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_REQUEST_BUFFERS_H_
