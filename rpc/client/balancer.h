// Balancer: one executor's choice among the servers of a channel's set.
//
// Each server of the set is a Subchannel: a connection that is opened ahead, and opened again when
// it was lost, with the connection's backoff. Those with a usable link are ready, and the Picker
// chooses among these alone. A server that leaves the set takes no new call, and its links close
// when the last call on them has ended. Owned by the executor's Connections, for one channel; used
// on that executor's thread.

#ifndef VERBENA_RPC_CLIENT_BALANCER_H_
#define VERBENA_RPC_CLIENT_BALANCER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/balancing.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/picker.h"
#include "verbena/rpc/client/server_feed.h"
#include "verbena/rpc/client/subchannel.h"
#include "verbena/rpc/deadline.h"
#include "verbena/transport/connect/link_parameters.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class Connections;
class Shard;

struct BalancerSetup {
  std::string target;  // for messages
  Balancing policy = Balancing::kRoundRobin;
  std::string zone;
  ExecutorWish wish;
};

class Balancer final : private SubchannelOwner, private CancelNode {
 public:
  Balancer(Shard& shard, Connections& connections, BalancerSetup options,
           std::shared_ptr<ServerFeed> feed);
  Balancer(const Balancer&) = delete;
  Balancer& operator=(const Balancer&) = delete;
  // Closes the connections that no other channel uses.
  ~Balancer() override;

  // The connection of a server that is ready; nullptr: none is.
  Connection* Pick(std::optional<uint64_t> route_key) {
    if (stale_) [[unlikely]]
      Rebuild();
    if (picker_.empty()) [[unlikely]]
      return nullptr;
    const uint32_t id =
        picker_.Pick(route_key, [this](uint32_t each) { return by_id_[each]->load(); });
    Connection* connection = by_id_[id];
    if (connection == nullptr || connection->usable_session() == nullptr) [[unlikely]]
      return AnyUsable();
    return connection;
  }
  // The same, and waits until a server is ready. UNAVAILABLE: the set is empty, or the attempts to
  // connect to all of its servers have failed; another code if all of them failed with that one.
  // INVALID_ARGUMENT: the target does not parse. `wait_for_ready`: an error that may pass is waited
  // out until `deadline`, which is a time or none.
  Task<absl::StatusOr<ConnectionUse>> AwaitPick(std::optional<uint64_t> route_key,
                                                Deadline deadline, bool wait_for_ready);
  // In the order of the set.
  std::vector<ChannelServer> Servers() const;

  // From the feed: a set, or nullptr if there was none yet, and the resolver's last error.
  void OnSet(const std::shared_ptr<const ServerSet>& set, const absl::Status& error);

 private:
  void OnReady(Subchannel& subchannel) override;
  void OnFailed(Subchannel& subchannel) override;
  void OnReadiness() override { stale_ = true; }
  // The executor shuts down: nobody waits for a server any more.
  void OnCancel(absl::StatusCode) override { TellWaiters(); }

  // Opens the connections that the policy wants, and drains those that it does not, but for
  // `caller`, whose Task calls this: its next attempt, or that of one before it, calls again.
  void Activate(const Subchannel* caller);
  void Rebuild();
  Connection* AnyUsable() const;
  void TellWaiters();
  Task<absl::Status> Changed() { co_return co_await changed_.Wait(); }
  // The reason why no server is ready; OK while an attempt may yet succeed.
  absl::Status Obstacle() const;

  Shard& shard_;
  Connections& connections_;
  const BalancerSetup options_;
  const std::shared_ptr<ServerFeed> feed_;
  const std::shared_ptr<FeedSubscriber> subscriber_;
  std::shared_ptr<const ServerSet> set_;                  // nullptr: none yet
  absl::Status resolver_error_;                           // OK unless the resolver fails
  std::vector<std::unique_ptr<Subchannel>> subchannels_;  // in the order of the set
  std::vector<Connection*> by_id_;                        // of subchannels; nullptr: none
  Picker picker_;
  bool stale_ = true;  // the picker does not know all that changed
  Event changed_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_BALANCER_H_
