// Shard: the part of a Runtime that lives on one executor: an endpoint for each device that is in
// use, and its connections to servers.
//
// Owned by the Runtime; used on its executor's thread, except published_stats().

#ifndef VERBENA_RPC_SHARD_H_
#define VERBENA_RPC_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/connection.h"
#include "verbena/rpc/published.h"
#include "verbena/rpc/shard_device.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task_scope.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/executor_gate.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena {

class Shard {
 public:
  // `id` names the runtime to the servers that its connections reach.
  Shard(Executor& executor, Bootstrap& bootstrap, uint32_t index, const RuntimeId& id);

  // Once, on the executor's thread or before it runs. The devices, one of each kind; an only one is
  // put to use at once, so that what is wrong with it shows when a program starts.
  absl::Status Init(const std::vector<DeviceKeeper*>& devices, const LinkLimits& limits,
                    uint32_t shards);
  // Ends every connection and link. The last thing that runs on a shard.
  Task<void> Shutdown();

  Executor& executor() const { return executor_; }
  Bootstrap& bootstrap() const { return bootstrap_; }
  // The devices' kinds, by index.
  const std::vector<LinkKind>& kinds() const { return kinds_; }
  // Made when first asked for: an endpoint pins memory. UNAVAILABLE while the device, which has
  // failed, is being opened again. Whoever keeps it beyond a wait holds its Use().
  absl::StatusOr<Endpoint*> EndpointOn(size_t device);
  // The same while this executor serves others: a control thread registers the memory.
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<Endpoint*>> AwaitEndpointOn(size_t device) {
    return devices_[device]->AwaitEndpoint();
  }
  // On the device of that kind; FAILED_PRECONDITION when there is none.
  Task<absl::StatusOr<Endpoint*>> AwaitEndpointFor(LinkKind kind);
  // The device of that name; "": the only one. INVALID_ARGUMENT names those that there are.
  absl::StatusOr<ShardDevice*> DeviceNamed(const std::string& device);
  // The one whose links use that protection domain; nullptr when there is none.
  const Endpoint* EndpointWith(const ibv_pd* pd) const;
  const std::vector<std::unique_ptr<ShardDevice>>& devices() const { return devices_; }
  // Statistics, one for each device that was of use.
  std::vector<DeviceStats> stats() const;
  const LinkLimits& wanted_limits() const { return limits_; }
  // The fewest links that one of the devices takes, also of those that are not in use yet.
  uint32_t max_links() const;
  uint32_t index() const { return index_; }
  // Tasks that belong to nobody else: connection attempts, what Runtime::Spawn was given.
  TaskScope& tasks() { return tasks_; }
  // stats(), kept for threads that cannot wait for this one. Published here, read anywhere.
  void PublishStats();
  std::vector<DeviceStats> published_stats() const { return published_.Get(); }

  // The connection to one executor of a target, shared by all channels to it, each of which is then
  // a user of it until Release().
  Connection& ConnectionTo(const std::string& target, const ExecutorWish& wish);
  // Open as long as there are connections, for channels that outlive them.
  const std::shared_ptr<ExecutorGate>& gate() const { return gate_; }
  // A channel uses `connection` no more.
  void Release(Connection& connection);

 private:
  Executor& executor_;
  Bootstrap& bootstrap_;
  const uint32_t index_;
  const RuntimeId runtime_id_;
  std::vector<LinkKind> kinds_;
  LinkLimits limits_;
  absl::flat_hash_map<std::string, std::unique_ptr<Connection>> connections_;
  // Without users; freed once their links are down.
  std::vector<std::unique_ptr<Connection>> released_;
  TaskScope tasks_;
  std::vector<std::unique_ptr<ShardDevice>> devices_;
  Published<std::vector<DeviceStats>> published_;
  const std::shared_ptr<ExecutorGate> gate_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SHARD_H_
