// ReplicatedKvService, ReplicationService, StoredCalls: a Replica as servers offer it: to clients,
// to other replicas, and to Verbena, which asks for results of repeated calls.
//
// Handlers refuse with Outcome::kNotExecuted whatever has changed nothing. The replica must outlive
// them.
//
//   Server::Start(*runtime, {&kv, &replication}, {.dedupe = {.store = &calls}});

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_SERVICE_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_SERVICE_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/replica.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/server_context.h"
#include "verbena/rpc/server_stream.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class ReplicatedKvService final : public v1::ReplicatedKv::Service {
 public:
  explicit ReplicatedKvService(Replica& replica) : replica_(replica) {}

  verbena::Task<absl::Status> Put(verbena::ServerContext& context, const v1::WriteRequest& request,
                                  v1::WriteReply& reply) override {
    co_return co_await Write(WriteKind::kPut, context, request, reply);
  }
  verbena::Task<absl::Status> Append(verbena::ServerContext& context,
                                     const v1::WriteRequest& request,
                                     v1::WriteReply& reply) override {
    co_return co_await Write(WriteKind::kAppend, context, request, reply);
  }
  verbena::Task<absl::Status> Get(verbena::ServerContext& context, const v1::GetRequest& request,
                                  v1::GetReply& reply) override;

 private:
  verbena::Task<absl::Status> Write(WriteKind kind, verbena::ServerContext& context,
                                    const v1::WriteRequest& request, v1::WriteReply& reply);

  Replica& replica_;
};

class ReplicationService final : public v1::Replication::Service {
 public:
  explicit ReplicationService(Replica& replica) : replica_(replica) {}

  verbena::Task<absl::Status> Replicate(verbena::ServerContext&,
                                        LogReceiver::Stream& stream) override {
    co_return co_await replica_.Receive(stream);
  }
  verbena::Task<absl::Status> Where(verbena::ServerContext& context,
                                    const v1::PositionRequest& request,
                                    v1::Acknowledgement& reply) override;

 private:
  Replica& replica_;
};

class StoredCalls final : public verbena::DedupeStore {
 public:
  explicit StoredCalls(Replica& replica) : replica_(replica) {}

  verbena::Task<absl::StatusOr<std::optional<verbena::DedupeResult>>> Lookup(
      verbena::RequestId id) override;

 private:
  Replica& replica_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_SERVICE_H_
