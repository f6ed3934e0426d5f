// ReplicatedKvService: a Replica as clients see it, and as Verbena sees it, which asks for the
// results of repeated calls.
//
// A handler that fails before it has changed anything says so by Outcome::kNotExecuted. The replica
// must outlive the service.
//
//   Server::Start(*runtime, {&kv, &replica}, {.dedupe = {.store = &kv}});

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_SERVICE_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_SERVICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/replica.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class ReplicatedKvService final : public v1::ReplicatedKv::Service, public verbena::DedupeStore {
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
                                  v1::GetReply& reply) override {
    const absl::StatusOr<std::shared_ptr<Primary>> primary = replica_.Serving(request.shard());
    if (!primary.ok()) co_return context.NotExecuted(primary.status());
    absl::StatusOr<std::optional<std::string>> value = co_await (*primary)->Get(request.key());
    if (!value.ok()) co_return context.NotExecuted(value.status());
    if (value->has_value()) reply.set_value(**std::move(value));
    co_return absl::OkStatus();
  }
  verbena::Task<absl::StatusOr<std::optional<verbena::DedupeResult>>> Lookup(
      verbena::RequestId id) override {
    VERBENA_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Primary> primary,
                                replica_.Serving(replica_.shard()));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::optional<uint64_t> sequence,
                                co_await primary->Lookup(id));
    if (!sequence.has_value()) co_return std::nullopt;
    v1::WriteReply reply;
    reply.set_sequence(*sequence);
    co_return verbena::DedupeResult{.reply = reply.SerializeAsString()};
  }

 private:
  verbena::Task<absl::Status> Write(WriteKind kind, verbena::ServerContext& context,
                                    const v1::WriteRequest& request, v1::WriteReply& reply) {
    const absl::StatusOr<std::shared_ptr<Primary>> primary = replica_.Serving(request.shard());
    if (!primary.ok()) co_return context.NotExecuted(primary.status());
    const std::optional<verbena::RequestId> id = context.dedupe_id();
    if (!id.has_value()) {
      co_return context.NotExecuted(absl::InvalidArgumentError(
          "the call has no name, so a repetition could run again: call with a DedupeToken"));
    }
    const absl::StatusOr<LogPosition> place =
        co_await (*primary)->Begin(kind, request,
                                   {.id = *id,
                                    .acknowledged_below = context.dedupe_acknowledged_below(),
                                    .highest = context.dedupe_highest()});
    if (absl::IsOutOfRange(place.status())) {
      co_return context.MaybeExecuted(absl::AbortedError(std::string(place.status().message())));
    }
    if (!place.ok()) co_return context.NotExecuted(place.status());
    const absl::Status committed = co_await (*primary)->AwaitCommitted(place->sequence);
    // Nobody knows yet whether the write survives. A repetition must not get this answer again.
    if (!committed.ok()) co_return context.MaybeExecuted(committed);
    reply.set_sequence(place->sequence);
    reply.set_epoch(place->epoch);
    co_return absl::OkStatus();
  }

  Replica& replica_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_SERVICE_H_
