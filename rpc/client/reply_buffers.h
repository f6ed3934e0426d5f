// ReplyBuffers: memory for the payloads of a stream's messages at its client.
//
// Landing memory, within the share of the connection's server (landing_share.h): the server chooses
// how large its payloads are. Part of a StreamCall, on its executor's thread. Works on once the
// link is lost, since what came before can still be read.

#ifndef VERBENA_RPC_CLIENT_REPLY_BUFFERS_H_
#define VERBENA_RPC_CLIENT_REPLY_BUFFERS_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/rpc/stream/stream_payloads.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class ClientSession;
class Endpoint;
class LandingShare;

class ReplyBuffers final : public StreamBuffers {
 public:
  // A stream begins on `session`, which has its link. `deadline` is the stream's.
  void Begin(const ClientSession& session, TimePoint deadline);

  absl::StatusOr<Buffer> TryAllocate(size_t bytes) override;
  Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) override;

 private:
  std::shared_ptr<LandingShare> share_;
  const Endpoint* endpoint_ = nullptr;
  std::weak_ptr<const bool> alive_;  // the endpoint
  TimePoint deadline_ = kNever;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_REPLY_BUFFERS_H_
