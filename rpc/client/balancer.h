// Balancer: one executor's choice among the servers of a channel's set.
//
// Each server of the set is a Subchannel: a connection that is opened ahead, and opened again when
// it was lost, with the connection's backoff. Subchannels says which of them are open. Those with a
// usable link are ready, and the Picker chooses among these alone, but for servers that are ejected
// (subchannels.h). A server that leaves the set takes no new call, and its links close when the
// last call on them has ended. The work for picks is done when something changes, not in each pick.
// Owned by the executor's Connections, for one channel; used on that executor's thread.

#ifndef VERBENA_RPC_CLIENT_BALANCER_H_
#define VERBENA_RPC_CLIENT_BALANCER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/client/picker.h"
#include "verbena/rpc/client/server_feed.h"
#include "verbena/rpc/client/subchannels.h"
#include "verbena/rpc/policy.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class Shard;

struct BalancerSetup {
  SubchannelsSetup servers;  // `client` and `max_links` are the balancer's to fill in
  EjectionOptions ejection;
};

class Balancer final : public ConnectionChoice,
                       private FeedListener,
                       private SubchannelOwner,
                       private CancelNode,
                       private TaskListener {
 public:
  Balancer(Shard& shard, Connections& connections, BalancerSetup setup,
           std::shared_ptr<ServerFeed> feed);
  Balancer(const Balancer&) = delete;
  Balancer& operator=(const Balancer&) = delete;
  // Closes the connections that no other channel uses.
  ~Balancer() override;

  // The connection of a server that is ready; nullptr: none is. A link that has just begun to close
  // may still be unusable: then call AwaitPick().
  Connection* Pick(std::optional<uint64_t> route_key);
  // Pick() for a further attempt: prefers a server that was not tried yet, if one is ready.
  Connection* PickOther(std::optional<uint64_t> route_key, const TriedServers& tried);
  // Waits until a server is ready, and picks as Pick() does. UNAVAILABLE: the set is empty, or the
  // attempts to connect to all of its servers have failed; if all of them failed with the same
  // code, that code. INVALID_ARGUMENT: the target does not parse. With `wait_for_ready`, the wait
  // goes on after an error that may pass, until `deadline`, which is a time or none; without it,
  // after one in which a server has named a time, if there is a deadline.
  Task<absl::StatusOr<ConnectionUse>> AwaitPick(std::optional<uint64_t> route_key,
                                                Deadline deadline, bool wait_for_ready);
  // In the order of the set.
  std::vector<ChannelServer> Servers() const { return subchannels_.Describe(); }
  // Waits until Servers() has changed, apart from calls in flight, since this function returned
  // `seen`. Returns the next `seen`. With 0, does not wait.
  Task<absl::StatusOr<uint64_t>> AwaitChange(uint64_t seen);

 private:
  void OnSet(const std::shared_ptr<const ServerSet>& set, const absl::Status& error) override;
  void OnReady(Subchannel& subchannel) override;
  void OnFailed(Subchannel& subchannel) override;
  void OnLate(Subchannel& subchannel) override;
  void OnReadiness() override;
  // The executor shuts down: nobody waits for a server any more.
  void OnCancel(absl::StatusCode) override { TellWaiters(); }

  void OnTaskDone() override {}

  // As Subchannels::Open(), unless the executor shuts down.
  void Activate(const Subchannel* caller);
  // Prepares picks. False if no server is ready.
  bool Rebuild();
  // Out of line to keep Pick() small.
  [[gnu::cold, gnu::noinline]] Connection* PickAnew(std::optional<uint64_t> route_key);
  // Pick(), which also looks again whether the link is usable.
  Connection* PickUsable(std::optional<uint64_t> route_key);
  // Ejects and readmits servers from time to time.
  Task<void> Judge();
  // Something has changed for picks: a server, or which of them are ready.
  void Unsettle();
  void TellWatchers();
  // All of them, and the watchers.
  void TellWaiters();
  // The reason why no server is ready; OK while an attempt may yet succeed. It is found out once
  // after each change.
  const absl::Status& Obstacle();

  // The picker has members, and knows all changes.
  bool settled_ = false;
  // The picker knows all changes, and has no members.
  bool deserted_ = false;
  bool ending_ = false;
  Picker picker_;
  std::vector<Connection*> places_;  // by the subchannels' ids; nullptr unless picked from
  Shard& shard_;
  const EjectionOptions ejection_;
  const std::shared_ptr<ServerFeed> feed_;
  const std::shared_ptr<FeedSubscriber> subscriber_;
  std::shared_ptr<const ServerSet> set_;  // nullptr: none yet
  absl::Status resolver_error_;           // OK unless the resolver fails
  Subchannels subchannels_;
  // Obstacle() keeps its answer here; a change empties it. Waits that were cut off may outlive the
  // balancer.
  const std::shared_ptr<std::optional<absl::Status>> obstacle_ =
      std::make_shared<std::optional<absl::Status>>();
  Event changed_;          // Servers()
  Event may_pick_;         // or may fail, for calls without wait_for_ready
  Event may_pick_late_;    // the same for those with wait_for_ready
  uint64_t revision_ = 1;  // of Servers()
  Task<void> judge_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_BALANCER_H_
