#include "examples/kv/kv_service.h"

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "examples/kv/limits.h"

namespace kv {

using verbena::ServerContext;
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
