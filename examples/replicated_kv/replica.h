// Replica: one server's part in a shard: it keeps its lease in etcd, follows the shard's state
// there, and is primary or backup as that state says. It serves the other replicas, too.
//
// Run() is its Task: it opens the log, registers nothing, and goes on until it is cancelled or the
// disk fails. Handlers use the rest, on the same executor: the runtime must have one only. Must
// outlive the server that serves it.
//
//   auto runs = runtime->Spawn(replica.Run(server->address()));
//   …
//   runtime->BlockOn(replica.HandOver());   // before the server shuts down
//   runs.RequestCancel();

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/epoch_gate.h"
#include "examples/replicated_kv/lease_term.h"
#include "examples/replicated_kv/log_receiver.h"
#include "examples/replicated_kv/primary.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "examples/replicated_kv/shard_directory.h"
#include "examples/replicated_kv/succession.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

struct ReplicaOptions {
  uint32_t shard = 0;
  std::string name;
  std::vector<std::string> replicas;  // of the shard, this one included
  std::string prefix;                 // of the shard's keys in etcd
  verbena::Duration ttl = std::chrono::seconds(2);
  verbena::Clock* clock = &BootClock::Get();
};

class Replica final : public v1::Replication::Service {
 public:
  // `peers` are the other replicas.
  Replica(ReplicaOptions options, ReplicaStore& store, verbena::EtcdClient& etcd,
          std::vector<OtherReplica> peers);

  verbena::Task<absl::Status> Run(std::string address);
  // Ends its part in good order: writes under way are committed and etcd hears of that, if each
  // takes no longer than a second; the lease is given back, and streams end.
  verbena::Task<void> HandOver();

  // The primary that may serve the shard, or why there is none here.
  absl::StatusOr<std::shared_ptr<Primary>> Serving(uint32_t shard) const;
  uint32_t shard() const { return options_.shard; }

  verbena::Task<absl::Status> Replicate(verbena::ServerContext& context,
                                        LogStream& stream) override;
  // UNAVAILABLE before the log is open.
  verbena::Task<absl::Status> Where(verbena::ServerContext& context,
                                    const v1::PositionRequest& request,
                                    v1::Acknowledgement& reply) override;

 private:
  verbena::Task<absl::Status> Open();
  verbena::Task<void> KeepLease();
  verbena::Task<absl::Status> RenewLease();
  verbena::Task<void> Act(SeenState seen);
  // Whether a primary has seen since this process started that the disk has all it should.
  bool is_tested() const { return was_out_ || log_->last() != opened_at_; }
  verbena::Task<Rivals> AskRivals(const ShardState& state);
  void Lead(SeenState seen);
  void StepDown(std::string why);
  absl::Status CheckShard(uint32_t shard) const;
  void Say(std::string_view what) const;

  const ReplicaOptions options_;
  ReplicaStore& store_;
  verbena::EtcdClient& etcd_;
  EtcdDirectory directory_;
  std::vector<OtherReplica> peers_;
  std::string address_;
  EpochGate gate_;
  verbena::Mutex receiving_;
  LeaseTerm term_;
  Succession succession_;
  int64_t lease_ = 0;      // 0: none
  int64_t lacked_at_ = 0;  // the revision of the state at which its log lacked committed entries
  bool stopping_ = false;
  std::unique_ptr<ReplicaLog> log_;  // once it is open
  LogPosition opened_at_;            // the log's end then
  // The replica was not in sync since it started. So if it is now, a primary that saw its log has
  // added it.
  bool was_out_ = false;
  std::shared_ptr<Primary> primary_;
  std::optional<verbena::TaskScope> tasks_;  // while Run() does
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_H_
