// Cluster: the server processes of a replicated store, which a demo starts, stops, kills and
// freezes; and what etcd says of their shards.
//
// Names are s1, s2 and so on; each shard has three of them, in order. Their disks are directories
// of a scratch directory, and outlive them. One thread, which runs no executor.
//
//   Cluster cluster(options, runtime, etcd, signals);
//   VERBENA_RETURN_IF_ERROR(cluster.StartAll());
//   VERBENA_RETURN_IF_ERROR(cluster.Kill(2));

#ifndef VERBENA_EXAMPLES_ROLLING_CLUSTER_H_
#define VERBENA_EXAMPLES_ROLLING_CLUSTER_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/server_process.h"
#include "examples/common/signals.h"
#include "examples/replicated_kv/shard_state.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/runtime.h"

namespace rolling {

struct ClusterOptions {
  std::string server;     // the path of replica_server
  std::string etcd;       // host:port
  std::string prefix;     // of all keys there
  std::string directory;  // for the disks
  size_t shards = 2;
};

class Cluster {
 public:
  static constexpr size_t kReplicas = 3;  // of a shard

  Cluster(ClusterOptions options, verbena::Runtime& runtime, verbena::EtcdClient& etcd,
          examples::StopSignals& signals)
      : options_(std::move(options)),
        runtime_(runtime),
        etcd_(etcd),
        signals_(signals),
        processes_(options_.shards * kReplicas) {}

  size_t size() const { return processes_.size(); }
  static std::string NameOf(size_t server) { return "s" + std::to_string(server + 1); }
  static size_t ShardOf(size_t server) { return server / kReplicas; }

  absl::Status StartAll();
  absl::Status StopAll();
  absl::Status Start(size_t server);
  absl::Status Stop(size_t server);            // in good order
  void Kill(size_t server);                    // kill -9
  absl::Status LoseDisk(size_t server) const;  // of one that does not run
  void Freeze(size_t server) const;
  void Thaw(size_t server) const;

  // The shard's state in etcd. UNAVAILABLE: there is none yet.
  absl::StatusOr<replicated_kv::ShardState> State(size_t shard);
  // The server that is its primary.
  absl::StatusOr<size_t> PrimaryOf(size_t shard);
  // Waits until all replicas of the shard are in sync.
  absl::Status AwaitInSync(size_t shard);
  // CANCELLED if a signal comes.
  absl::Status Pause(std::chrono::milliseconds delay);

 private:
  const ClusterOptions options_;
  verbena::Runtime& runtime_;
  verbena::EtcdClient& etcd_;
  examples::StopSignals& signals_;
  std::vector<std::unique_ptr<examples::ServerProcess>> processes_;
};

}  // namespace rolling

#endif  // VERBENA_EXAMPLES_ROLLING_CLUSTER_H_
