#include "examples/replicated_kv/replica_service.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "fmt/format.h"

namespace replicated_kv {

using verbena::ServerContext;
using verbena::Task;

namespace {

// The primary that may serve the shard, or why there is none here.
absl::StatusOr<std::shared_ptr<Primary>> ServingPrimary(const Replica& replica, uint32_t shard) {
  const ReplicaOptions& options = replica.options();
  if (shard != options.shard) {
    return absl::InvalidArgumentError(
        fmt::format("a call for shard {} at a replica of shard {}", shard, options.shard));
  }
  std::shared_ptr<Primary> primary = replica.primary();
  if (primary == nullptr) {
    return absl::UnavailableError(
        fmt::format("{} is not the primary of shard {}", options.name, shard));
  }
  VERBENA_RETURN_IF_ERROR(primary->Serving());
  return primary;
}

}  // namespace

Task<absl::Status> ReplicatedKvService::Write(WriteKind kind, ServerContext& context,
                                              const v1::WriteRequest& request,
                                              v1::WriteReply& reply) {
  const absl::StatusOr<std::shared_ptr<Primary>> primary =
      ServingPrimary(replica_, request.shard());
  if (!primary.ok()) co_return context.NotExecuted(primary.status());
  const std::optional<verbena::RequestId> id = context.dedupe_id();
  if (!id.has_value()) {
    co_return context.NotExecuted(absl::InvalidArgumentError(
        "the call has no name, so a repetition could run again: call with a DedupeToken"));
  }
  const absl::StatusOr<uint64_t> sequence = co_await (*primary)->Begin(
      kind, request, {.id = *id, .acknowledged_below = context.dedupe_acknowledged_below()});
  if (absl::IsOutOfRange(sequence.status())) {
    co_return absl::AbortedError(std::string(sequence.status().message()));
  }
  if (!sequence.ok()) co_return context.NotExecuted(sequence.status());
  // From here on an error means that nobody knows yet whether the write survives.
  VERBENA_CO_RETURN_IF_ERROR(co_await (*primary)->AwaitCommitted(*sequence));
  reply.set_sequence(*sequence);
  reply.set_server(replica_.options().name);
  reply.set_epoch((*primary)->epoch());
  co_return absl::OkStatus();
}

Task<absl::Status> ReplicatedKvService::Get(ServerContext& context, const v1::GetRequest& request,
                                            v1::GetReply& reply) {
  const absl::StatusOr<std::shared_ptr<Primary>> primary =
      ServingPrimary(replica_, request.shard());
  if (!primary.ok()) co_return context.NotExecuted(primary.status());
  absl::StatusOr<std::optional<std::string>> value = co_await (*primary)->Get(request.key());
  if (!value.ok()) co_return context.NotExecuted(value.status());
  if (value->has_value()) reply.set_value(**std::move(value));
  reply.set_server(replica_.options().name);
  reply.set_epoch((*primary)->epoch());
  co_return absl::OkStatus();
}

Task<absl::Status> ReplicationService::Where(ServerContext& context,
                                             const v1::PositionRequest& request,
                                             v1::Acknowledgement& reply) {
  if (request.shard() != replica_.options().shard) {
    co_return context.NotExecuted(absl::InvalidArgumentError("this is a replica of another shard"));
  }
  VERBENA_CO_ASSIGN_OR_RETURN(reply, replica_.Where());
  co_return absl::OkStatus();
}

Task<absl::StatusOr<std::optional<verbena::DedupeResult>>> StoredCalls::Lookup(
    verbena::RequestId id) {
  VERBENA_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Primary> primary,
                              ServingPrimary(replica_, replica_.options().shard));
  VERBENA_CO_ASSIGN_OR_RETURN(const std::optional<uint64_t> sequence, co_await primary->Lookup(id));
  if (!sequence.has_value()) co_return std::nullopt;
  v1::WriteReply reply;
  reply.set_sequence(*sequence);
  co_return verbena::DedupeResult{.reply = reply.SerializeAsString()};
}

}  // namespace replicated_kv
