// ClientChannel: what stands behind a Channel (channel.h): the way of calls to a connection with
// the target's server, or with one of its servers.
//
// Owned by the Channel. Calls and streams refer to it. Each executor of the runtime has an entry of
// its own in it, so no lock is taken. target(), options() and policies() may be used on any thread,
// all else on an executor of the runtime.

#ifndef VERBENA_RPC_CLIENT_CHANNEL_H_
#define VERBENA_RPC_CLIENT_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/balancer.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/client/policies.h"
#include "verbena/rpc/client/server_feed.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

class ClientChannel {
 public:
  // As Channel's constructor, which says what a check aborts for.
  ClientChannel(RuntimeCore& runtime, std::string target, ChannelOptions options);
  // On any thread, also while or after the runtime is destroyed.
  ~ClientChannel();
  ClientChannel(const ClientChannel&) = delete;
  ClientChannel& operator=(const ClientChannel&) = delete;

  const std::string& target() const { return target_; }
  const ChannelOptions& options() const { return options_; }
  // Whether its calls have no policies and no interceptors.
  bool plain() const { return plain_; }
  // Whether the runtime counts calls (RuntimeOptions::metrics).
  bool counts_calls() const { return counts_calls_; }
  // Whether the target names a set of servers.
  bool chooses() const { return feed_ != nullptr; }
  // Retries and the like by method; nullptr without a service_config.
  CallPolicies* policies() const { return policies_.get(); }
  // This executor's part of the runtime; nullptr on a thread that runs none.
  Shard* ShardHere() const { return runtime_.ShardHere(); }

  // The connection that a call with `route_key` takes now. nullptr if no server of a set is ready,
  // or if this thread runs no executor of the runtime. The connection's link may be unusable:
  // Route() finds another one.
  Connection* Here(std::optional<uint64_t> route_key = {}) {
    Shard* shard = runtime_.ShardHere();
    return shard == nullptr ? nullptr : On(*shard, route_key);
  }
  // The same, if ShardHere() is `shard`.
  Connection* On(Shard& shard, std::optional<uint64_t> route_key) {
    const Use& use = uses_[shard.index()];
    if (use.connection != nullptr) [[likely]]
      return use.connection;
    if (use.balancer != nullptr) [[likely]]
      return use.balancer->Pick(route_key);
    return FirstUse(shard, route_key);
  }
  // The connection for a further attempt. If the call must stay with a server: that one. Otherwise
  // one of a server that is not in `tried`, if one is ready. nullptr as for Here().
  Connection* Apart(const TriedServers& tried, std::optional<uint64_t> route_key);
  // Waits for a connection with a usable link: until `deadline`, which is a time or none, and
  // without `wait_for_ready` only as long as no attempt to connect has failed. An error has
  // Outcome::kNotExecuted. FAILED_PRECONDITION: this thread runs no executor of the runtime.
  Task<absl::StatusOr<ConnectionUse>> Route(std::optional<uint64_t> route_key, Deadline deadline,
                                            bool wait_for_ready);
  // Gives the channel's deduplicated calls their names on the executor of `shard`, which is this
  // thread's.
  const std::shared_ptr<DedupeClient>& DedupeClientOn(const Shard& shard);

  // As those of Channel.
  absl::StatusOr<std::vector<ChannelServer>> Servers();
  Task<absl::StatusOr<uint64_t>> ServersChanged(uint64_t seen);
  // Whether the target is one server; the error says that `what` belongs to one.
  absl::Status CheckOneServer(const char* what) const;

 private:
  // This executor's way to the target. One of the first two is set once it has been used.
  struct Use {
    Connection* connection = nullptr;  // of one server
    Balancer* balancer = nullptr;      // of a set
    Connections* connections = nullptr;
    std::shared_ptr<ExecutorGate> gate;  // open while the above live
  };

  // Here() when this executor has not used the channel before.
  [[gnu::noinline]] Connection* FirstUse(Shard& shard, std::optional<uint64_t> route_key);
  Balancer& BalancerOn(Shard& shard);

  RuntimeCore& runtime_;
  // By executor, each entry used on that executor's thread only.
  std::vector<Use> uses_;
  const std::string target_;
  const ChannelOptions options_;
  const std::unique_ptr<CallPolicies> policies_;
  const bool plain_;
  const bool counts_calls_;
  const std::shared_ptr<ServerFeed> feed_;  // nullptr: one server
  // By executor, as uses_. Null until the first deduplicated call. Tokens may outlive the channel.
  std::vector<std::shared_ptr<DedupeClient>> dedupe_clients_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CHANNEL_H_
