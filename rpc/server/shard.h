// ServerShard: a server's part on one executor: its links, the clients that they come from, and
// what their calls share.
//
// Owned by the Server; used on its executor's thread, but for published_stats().

#ifndef VERBENA_RPC_SERVER_SHARD_H_
#define VERBENA_RPC_SERVER_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/server/call.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/session.h"
#include "verbena/rpc/server/state.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {

class Endpoint;
class Link;

class ServerShard final : private ServerSession::Owner {
 public:
  ServerShard(Shard& shard, const MethodTable& methods, const ServerLimits& limits);

  Executor& executor() const { return state_.executor(); }

  // Answers an offer that arrived on `stream`, and serves the link.
  void Serve(std::unique_ptr<MessageStream> stream, LinkParameters offer);

  // Tells the handlers and the clients, and refuses new calls once the clients know. Waits until
  // the running calls end or `deadline` passes, then cancels them. Closes the links at most
  // kCloseGrace later, even if somebody still waits for something over them. May be called again,
  // and then waits for the handlers that were left.
  Task<void> Shutdown(TimePoint deadline);
  // Closes the link of `client` that `attempt` came over, and waits until nothing of that call goes
  // on. Not OK if the caller's scope is cancelled first.
  Task<absl::Status> EndAttempt(RuntimeId client, EarlierAttempt attempt);
  // Waits for handlers that outlasted Shutdown(); names them in the log from time to time.
  Task<void> AwaitHandlers();
  // Adds up the handlers that run, by method.
  void CountRunning(RunningHandlers& running);

  ServerStats stats() const;
  // stats(), kept for threads that cannot wait for this one. Published here, read anywhere.
  void PublishStats() { published_.Set(stats()); }
  ServerStats published_stats() const { return published_.Get(); }
  uint32_t active() const { return calls_.active(); }

 private:
  void OnSessionOpen(ServerSession& session) override;
  void OnSessionDown(ServerSession& session) override;
  void OnSessionIdle(ServerSession& session) override;
  void ReclaimGrants(const Endpoint& endpoint) override;
  void ReclaimGrants(ServerSource& source) override;
  void OnGrant() override { reclaimed_.clear(); }

  const ServerLimits& limits() const { return state_.limits(); }
  Task<void> Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer);
  // The session of the link with that identity, also if that is down and calls are left. nullptr:
  // no call of that link runs, or will begin.
  ServerSession* FindByLink(uint64_t identity) const;
  // Makes a session under `number` in sessions_, and its link. If this fails, the caller takes the
  // session out of sessions_.
  Task<absl::Status> AcceptAs(uint64_t number, std::unique_ptr<MessageStream> stream,
                              LinkParameters offer);
  Task<absl::StatusOr<Link*>> Open(std::unique_ptr<MessageStream> stream, LinkParameters offer,
                                   ServerSession& session);
  // The bounds of the client that connects by `stream` and claims to be `id`.
  std::shared_ptr<ServerClient> ClientOf(const MessageStream& stream, const RuntimeId& id);
  // The bounds of the source `address`, which stands for all clients unless it `names_source`.
  std::shared_ptr<ServerSource> SourceOf(const std::string& address, bool names_source);
  // Entries without a link leave the tables when these have grown to twice their use.
  void ForgetExpired();
  Task<absl::Status> WaitUntilUnlinked();
  Task<void> CancelHandlers(TimePoint until);

  Shard& shard_;
  ServerState state_;
  CallPool calls_;
  // Endpoints whose clients were asked for all their grants. Compared, never used.
  absl::flat_hash_set<const Endpoint*> reclaimed_;
  bool closed_ = false;    // Shutdown() has gathered the links that it closes
  uint64_t accepted_ = 0;  // links, so far
  Published<ServerStats> published_;
  Event unlinked_;  // no links, once the server leaves
  // By source address, and by address and claimed id. Owned by their links; entries without a link
  // may have expired.
  absl::flat_hash_map<std::string, std::weak_ptr<ServerSource>> sources_;
  absl::flat_hash_map<std::pair<std::string, RuntimeId>, std::weak_ptr<ServerClient>> clients_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<ServerSession>> sessions_;  // by number
  // By the identity of the link: all whose links have opened, as no call comes before that.
  absl::flat_hash_map<uint64_t, ServerSession*> by_link_;
  // Down and idle, but perhaps still on the stack: freed in the next Accept, or at the end.
  std::vector<std::unique_ptr<ServerSession>> finished_;
  TaskScope tasks_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SHARD_H_
