// ServerShard: a server's part on one executor: its links, and the pools of calls of each method.
//
// Owned by the Server; used on its executor's thread.

#ifndef VERBENA_RPC_SERVER_SHARD_H_
#define VERBENA_RPC_SERVER_SHARD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/rpc/method_table.h"
#include "verbena/rpc/server_call.h"
#include "verbena/rpc/server_link.h"
#include "verbena/rpc/shard.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/bounded_vector.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/poison.h"
#include "verbena/transport/coro/task_scope.h"

namespace verbena {

struct ServerShardStats {
  uint64_t calls = 0;             // started
  uint64_t failures = 0;          // answered with a failed Status, refusals included
  uint64_t refused = 0;           // not started: unknown method, overload, shutting down
  uint64_t payloads_written = 0;  // to landings that were granted ahead
  size_t granted_bytes = 0;       // in such landings, now
};

class ServerShard {
 public:
  ServerShard(Shard& shard, const MethodTable& methods, uint32_t max_concurrent_calls);
  ~ServerShard();

  Executor& executor() const { return shard_.executor(); }
  const MethodTable& methods() const { return methods_; }

  // Answers an offer that arrived on `stream`, and serves the link.
  void Serve(std::unique_ptr<MessageStream> stream, LinkParameters offer);

  // A call of the method, from the pool; nullptr when it is refused.
  ServerCall* Admit(uint64_t method_id) {
    const int index = methods_.Find(method_id);
    if (index < 0 || draining_ || active_ >= max_concurrent_calls_) return nullptr;
    ++active_;
    ++stats_.calls;
    if (free_[index].empty()) return AddCall(index);
    ServerCall* call = free_[index].PopBack();
    UnpoisonMemory(call, sizeof(*call));
    return call;
  }
  // Why Admit() just refused, counted: UNIMPLEMENTED, RESOURCE_EXHAUSTED (overload) or UNAVAILABLE
  // (shutting down).
  [[gnu::cold, gnu::noinline]] absl::Status Refusal(uint64_t method_id);
  void Recycle(ServerCall& call) {
    free_[call.method_index()].PushBack(&call);
    PoisonMemory(&call, sizeof(call));
    if (--active_ == 0 && draining_) idle_.Set();
  }
  void NoteFailure() { ++stats_.failures; }
  void NotePayloadWritten() { ++stats_.payloads_written; }
  // What its lenders count (landing_lender.h).
  size_t& granted_bytes() { return stats_.granted_bytes; }
  void OnLinkDown(ServerLink& link);
  // A link that is down has no calls left.
  void OnLinkIdle(ServerLink& link);

  // Refuses new calls and tells the clients; waits until the running ones end, or `grace` passes,
  // then cancels them and waits for that too. Closes the links.
  Task<void> Shutdown(Duration grace);

  const ServerShardStats& stats() const { return stats_; }
  uint32_t active() const { return active_; }
  // Asks every client on `endpoint` for the landings that it was lent ahead.
  void ReclaimLandings(const Endpoint& endpoint);

 private:
  [[gnu::cold, gnu::noinline]] ServerCall* AddCall(int method_index);
  Task<void> Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer);
  Task<absl::StatusOr<Link*>> Open(std::unique_ptr<MessageStream> stream, LinkParameters offer,
                                   ServerLink& link);
  Task<absl::Status> WaitUntilIdle();
  Task<absl::Status> WaitUntilUnlinked();

  Shard& shard_;
  const MethodTable& methods_;
  const uint32_t max_concurrent_calls_;
  uint32_t active_ = 0;
  bool draining_ = false;
  uint64_t accepted_ = 0;   // links, so far
  ServerShardStats stats_;  // before the links, which count in it until they are gone
  Event idle_;              // no calls, while draining
  Event unlinked_;          // no links, while draining
  std::vector<std::unique_ptr<ServerLink>> links_;
  // Down and idle, but perhaps still on the stack: freed in the next Accept, or at the end.
  std::vector<std::unique_ptr<ServerLink>> finished_;
  std::vector<std::unique_ptr<ServerCall>> calls_;  // all of them
  std::vector<BoundedVector<ServerCall*>> free_;    // by method; what they hold is poisoned
  TaskScope tasks_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_SHARD_H_
