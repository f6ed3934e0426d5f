// Shard: the part of a Runtime that lives on one executor: its endpoint, and its connections to
// servers.
//
// Owned by the Runtime; used on its executor's thread, except Post().

#ifndef VERBENA_RPC_SHARD_H_
#define VERBENA_RPC_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>

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

  // Once, on the executor's thread or before it runs.
  absl::Status Init(DeviceContext& context, const LinkLimits& limits, uint32_t shards);
  // Ends every connection and link. The last thing that runs on a shard.
  Task<void> Shutdown();

  Executor& executor() const { return executor_; }
  Bootstrap& bootstrap() const { return bootstrap_; }
  Endpoint& endpoint() const { return *endpoint_; }
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
  std::unique_ptr<Endpoint> endpoint_;
  absl::flat_hash_map<std::string, std::unique_ptr<Connection>> connections_;
  TaskScope tasks_;
  TaskScope roots_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SHARD_H_
