#include "examples/kv/kv_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "examples/kv/limits.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace kv {

using verbena::Buffer;
using verbena::ServerContext;
using verbena::ServerWriter;
using verbena::Task;

namespace {

// Between two looks for changes. A client may have thousands of idle watchers.
constexpr verbena::Duration kShortestPause = std::chrono::milliseconds(1);
constexpr verbena::Duration kLongestPause = std::chrono::milliseconds(32);

}  // namespace

Task<absl::Status> KvService::Put(ServerContext& context, const v1::PutRequest& request,
                                  v1::PutReply& reply) {
  if (!context.has_request_payload()) {
    co_return absl::InvalidArgumentError("a Put needs its value as payload, perhaps an empty one");
  }
  // The store reads it where it arrived.
  const Buffer value = context.TakeRequestPayload();
  v1::PutReply if_new;
  if_new.set_created(true);
  VERBENA_CO_ASSIGN_OR_RETURN(
      const bool existed,
      co_await Write(context,
                     {.key = request.key(), .value = std::string_view(value.data(), value.size())},
                     if_new.SerializeAsString(), v1::PutReply().SerializeAsString()));
  reply.set_created(!existed);
  co_return absl::OkStatus();
}

Task<absl::StatusOr<bool>> KvService::Write(ServerContext& context, StoreWrite write,
                                            std::string reply_if_new,
                                            std::string reply_if_existed) {
  const std::optional<verbena::RequestId> name = context.dedupe_id();
  absl::StatusOr<bool> existed;
  if (name.has_value()) {
    existed =
        co_await records_.Write(write, {.name = *name,
                                        .acknowledged_below = context.dedupe_acknowledged_below(),
                                        .highest = context.dedupe_highest(),
                                        .reply_if_new = reply_if_new,
                                        .reply_if_existed = reply_if_existed});
  } else {
    existed = co_await store_.Write(write);
  }
  if (existed.ok()) co_return existed;
  if (verbena::OutcomeOf(existed.status()) == verbena::Outcome::kNotExecuted) {
    co_return context.NotExecuted(existed.status());
  }
  // A failure that counts as the call's result would be its answer although the write is there, or
  // comes back after a restart.
  co_return context.MaybeExecuted(existed.status());
}

Task<absl::Status> KvService::Get(ServerContext& context, const v1::GetRequest& request,
                                  v1::GetReply&) {
  std::string value;
  VERBENA_CO_RETURN_IF_ERROR(co_await store_.Get(request.key(), value));
  Buffer payload;
  while (payload.size() != value.size()) {
    if (value.empty()) break;
    payload = Buffer();
    VERBENA_CO_ASSIGN_OR_RETURN(payload, co_await BufferFor(context, request.key(), value));
  }
  if (value.empty()) {
    context.SetResponsePayload(verbena::Payload::Empty());
    co_return absl::OkStatus();
  }
  std::memcpy(payload.data(), value.data(), value.size());
  context.SetResponsePayload(std::move(payload));
  co_return absl::OkStatus();
}

Task<absl::StatusOr<Buffer>> KvService::BufferFor(ServerContext& context, std::string_view key,
                                                  std::string& value) {
  const size_t bytes = value.size();
  const bool holds =
      held_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= max_held_bytes_;
  // An interceptor may destroy the handler while it waits.
  absl::Cleanup let_go = [&] { held_bytes_.fetch_sub(bytes, std::memory_order_relaxed); };
  if (!holds) {
    std::move(let_go).Invoke();
    std::string().swap(value);
  }
  absl::StatusOr<Buffer> payload = co_await context.AllocateBuffer(bytes);
  if (!holds && payload.ok()) VERBENA_CO_RETURN_IF_ERROR(co_await store_.Get(key, value));
  co_return payload;
}

Task<absl::Status> KvService::Delete(ServerContext& context, const v1::DeleteRequest& request,
                                     v1::DeleteReply& reply) {
  v1::DeleteReply if_existed;
  if_existed.set_existed(true);
  VERBENA_CO_ASSIGN_OR_RETURN(
      const bool existed,
      co_await Write(context, {.key = request.key()}, v1::DeleteReply().SerializeAsString(),
                     if_existed.SerializeAsString()));
  reply.set_existed(existed);
  co_return absl::OkStatus();
}

Task<absl::Status> KvService::Scan(ServerContext&, const v1::ScanRequest& request,
                                   v1::ScanReply& reply) {
  const size_t wanted = request.max_bytes();
  const size_t bytes = wanted == 0 || wanted > kMaxPageBytes ? kMaxPageBytes : wanted;
  VERBENA_CO_ASSIGN_OR_RETURN(ScanPage page, co_await store_.Scan(request.start_key(), bytes));
  for (StoreEntry& entry : page.entries) {
    v1::Entry& added = *reply.add_entries();
    added.set_key(std::move(entry.key));
    added.set_value(std::move(entry.value));
  }
  reply.set_next_key(std::move(page.next_key));
  co_return absl::OkStatus();
}

Task<absl::Status> KvService::ScanAll(ServerContext&, const v1::ScanAllRequest& request,
                                      ServerWriter<v1::Entry>& entries) {
  std::string next_key = request.start_key();
  v1::Entry message;
  do {
    VERBENA_CO_ASSIGN_OR_RETURN(ScanPage page, co_await store_.Scan(next_key, kMaxPageBytes));
    for (StoreEntry& entry : page.entries) {
      message.set_key(std::move(entry.key));
      message.set_value(std::move(entry.value));
      VERBENA_CO_RETURN_IF_ERROR(co_await entries.Write(message));
    }
    next_key = std::move(page.next_key);
  } while (!next_key.empty());
  co_return absl::OkStatus();
}

Task<absl::Status> KvService::Watch(ServerContext& context, const v1::WatchRequest& request,
                                    ServerWriter<v1::Change>& changes) {
  verbena::Duration pause = kShortestPause;
  uint64_t seen = store_.changes().last();
  v1::Change message;
  message.set_number(seen);
  VERBENA_CO_RETURN_IF_ERROR(co_await changes.Write(message));
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(std::vector<StoreChange> found,
                                store_.changes().After(seen, request.prefix()));
    for (StoreChange& change : found) {
      message.set_number(change.number);
      message.set_key(std::move(change.key));
      message.clear_value();
      if (change.value.has_value()) message.set_value(*std::move(change.value));
      VERBENA_CO_RETURN_IF_ERROR(co_await changes.Write(message));
    }
    if (!found.empty()) pause = kShortestPause;
    if (seen < store_.changes().last()) continue;
    // A watch has no end of its own, and must not take the whole grace of the shutdown.
    if (context.shutting_down()) co_return absl::UnavailableError("the server shuts down");
    VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Sleep(pause));
    pause = std::min(2 * pause, kLongestPause);
  }
}

Task<absl::Status> KvService::Stats(ServerContext&, const v1::StatsRequest&,
                                    v1::StatsReply& reply) {
  VERBENA_CO_ASSIGN_OR_RETURN(const StoreStats stats, co_await store_.Stats());
  reply.set_keys(stats.keys);
  reply.set_bytes(stats.bytes);
  reply.set_max_bytes(stats.max_bytes);
  reply.set_puts(stats.puts);
  reply.set_gets(stats.gets);
  reply.set_misses(stats.misses);
  reply.set_deletes(stats.deletes);
  reply.set_scans(stats.scans);
  reply.set_store(store_.description());
  reply.set_batches(stats.batches);
  co_return absl::OkStatus();
}

}  // namespace kv
