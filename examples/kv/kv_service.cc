#include "examples/kv/kv_service.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/kv/limits.h"
#include "verbena/rpc/time.h"

namespace kv {

using verbena::ServerContext;
using verbena::ServerWriter;
using verbena::Task;

Task<absl::Status> KvService::Put(ServerContext&, const v1::PutRequest& request,
                                  v1::PutReply& reply) {
  absl::StatusOr<bool> created = store_.Put(request.key(), request.value());
  if (created.ok()) reply.set_created(*created);
  co_return created.status();
}

Task<absl::Status> KvService::Get(ServerContext&, const v1::GetRequest& request,
                                  v1::GetReply& reply) {
  co_return store_.Get(request.key(), *reply.mutable_value());
}

Task<absl::Status> KvService::Delete(ServerContext&, const v1::DeleteRequest& request,
                                     v1::DeleteReply& reply) {
  reply.set_existed(store_.Delete(request.key()));
  co_return absl::OkStatus();
}

Task<absl::Status> KvService::Scan(ServerContext&, const v1::ScanRequest& request,
                                   v1::ScanReply& reply) {
  const size_t wanted = request.max_bytes();
  ScanPage page = store_.Scan(request.start_key(),
                              wanted == 0 || wanted > kMaxPageBytes ? kMaxPageBytes : wanted);
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
    ScanPage page = store_.Scan(next_key, kMaxPageBytes);
    for (StoreEntry& entry : page.entries) {
      message.set_key(std::move(entry.key));
      message.set_value(std::move(entry.value));
      VERBENA_CO_RETURN_IF_ERROR(co_await entries.Write(message));
    }
    next_key = std::move(page.next_key);
  } while (!next_key.empty());
  co_return absl::OkStatus();
}

Task<absl::Status> KvService::Watch(ServerContext&, const v1::WatchRequest& request,
                                    ServerWriter<v1::Change>& changes) {
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
    if (seen < store_.changes().last()) continue;
    VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Sleep(std::chrono::milliseconds(1)));
  }
}

Task<absl::Status> KvService::Stats(ServerContext&, const v1::StatsRequest&,
                                    v1::StatsReply& reply) {
  const StoreStats stats = store_.stats();
  reply.set_keys(stats.keys);
  reply.set_bytes(stats.bytes);
  reply.set_max_bytes(store_.max_bytes());
  reply.set_puts(stats.puts);
  reply.set_gets(stats.gets);
  reply.set_misses(stats.misses);
  reply.set_deletes(stats.deletes);
  reply.set_scans(stats.scans);
  co_return absl::OkStatus();
}

}  // namespace kv
