// Connections: the connections that one executor has to servers.
//
// Channels to the same executor of a target share one. Owned by the Runtime, beside the Shard that
// the connections use; used on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_CONNECTIONS_H_
#define VERBENA_RPC_CLIENT_CONNECTIONS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/transport/connect/link_parameters.h"
#include "verbena/transport/executor/executor_gate.h"

namespace verbena::internal {

class Shard;

class Connections {
 public:
  // `shard` outlives it.
  explicit Connections(Shard& shard);

  // The connection to one executor of `target`, shared by all channels to that executor. The
  // channel that calls this is a user of the connection until Release().
  Connection& To(const std::string& target, const ExecutorWish& wish);
  // A channel uses `connection` no more.
  void Release(Connection& connection);
  // Open as long as there are connections, for channels that outlive them.
  const std::shared_ptr<ExecutorGate>& gate() const { return gate_; }
  // Ends all of them, whose links are down already, and closes the gate.
  void Clear();

 private:
  void FreeEnded();

  Shard& shard_;
  absl::flat_hash_map<std::string, std::unique_ptr<Connection>> connections_;
  // Without users; freed, once their links are down, when a channel comes or goes.
  std::vector<std::unique_ptr<Connection>> released_;
  const std::shared_ptr<ExecutorGate> gate_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CONNECTIONS_H_
