// Shard: the part of a Runtime that lives on one executor: an endpoint for each device that is in
// use, and its connections to servers.
//
// Owned by the Runtime; used on its executor's thread, except Post().

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
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task_scope.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena {

class Shard {
 public:
  Shard(Executor& executor, Bootstrap& bootstrap, uint32_t index);

  // Once, on the executor's thread or before it runs. The devices, one of each kind; an only one is
  // put to use at once, so that what is wrong with it shows when a program starts.
  absl::Status Init(const std::vector<DeviceContext*>& contexts, const LinkLimits& limits,
                    uint32_t shards);
  // Ends every connection and link. The last thing that runs on a shard.
  Task<void> Shutdown();

  Executor& executor() const { return executor_; }
  Bootstrap& bootstrap() const { return bootstrap_; }
  // Of the devices, by their index.
  const std::vector<LinkKind>& kinds() const { return kinds_; }
  // Made when first asked for: an endpoint pins memory.
  absl::StatusOr<Endpoint*> EndpointOn(size_t device);
  // On the device of that kind; FAILED_PRECONDITION when there is none.
  absl::StatusOr<Endpoint*> EndpointFor(LinkKind kind);
  // Of the endpoints that there are.
  std::vector<DeviceStats> stats() const;
  const LinkLimits& wanted_limits() const { return limits_; }
  uint32_t index() const { return index_; }
  // Tasks that belong to nobody else: connection attempts, what Runtime::Spawn was given.
  TaskScope& tasks() { return tasks_; }
  // Tasks that another thread waits for, Shutdown() among them.
  TaskScope& roots() { return roots_; }

  // The connection to one executor of a target, shared by all channels to it; made when first asked
  // for, and kept.
  Connection& ConnectionTo(const std::string& target, uint32_t server_executor);

 private:
  Executor& executor_;
  Bootstrap& bootstrap_;
  const uint32_t index_;
  std::vector<DeviceContext*> contexts_;
  std::vector<LinkKind> kinds_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  // nullptr where none was needed yet
  LinkLimits limits_;
  uint32_t shards_ = 1;
  absl::flat_hash_map<std::string, std::unique_ptr<Connection>> connections_;
  TaskScope tasks_;
  TaskScope roots_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SHARD_H_
