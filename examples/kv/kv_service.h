// KvService: kv.v1.KeyValue on a Store.
//
// Its handlers run on every executor of the server. They wait for the store, which never blocks an
// executor, and for memory for values. The bytes that they hold meanwhile are bounded: a client
// that takes no responses must not fill the server's memory. Streams wait for their callers; Watch
// looks for changes each millisecond, since another executor may make them, and less often while
// there are none. Store and records must outlive it.
//
//   kv::MemoryStore store(64 << 20);
//   kv::DedupeRecords records(store);
//   kv::KvService service(store, records);
//   auto server =
//       verbena::Server::Start(*runtime, {&service}, {.dedupe = {.store = &records}});

#ifndef VERBENA_EXAMPLES_KV_KV_SERVICE_H_
#define VERBENA_EXAMPLES_KV_KV_SERVICE_H_

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/dedupe_records.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "examples/kv/store.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

namespace kv {

class KvService final : public v1::KeyValue::Service {
 public:
  // The most bytes of values whose Gets wait for memory for their responses. (start)
  static constexpr size_t kMaxHeldBytes = size_t{64} << 20;

  // `records` are those of `store`. Gets that wait hold `max_held_bytes` at most; further ones read
  // their values again.
  KvService(Store& store, DedupeRecords& records, size_t max_held_bytes = kMaxHeldBytes)
      : store_(store), records_(records), max_held_bytes_(max_held_bytes) {}

  verbena::Task<absl::Status> Put(verbena::ServerContext& context, const v1::PutRequest& request,
                                  v1::PutReply& reply) override;
  verbena::Task<absl::Status> Get(verbena::ServerContext& context, const v1::GetRequest& request,
                                  v1::GetReply& reply) override;
  verbena::Task<absl::Status> Delete(verbena::ServerContext& context,
                                     const v1::DeleteRequest& request,
                                     v1::DeleteReply& reply) override;
  verbena::Task<absl::Status> Scan(verbena::ServerContext& context, const v1::ScanRequest& request,
                                   v1::ScanReply& reply) override;
  verbena::Task<absl::Status> ScanAll(verbena::ServerContext& context,
                                      const v1::ScanAllRequest& request,
                                      verbena::ServerWriter<v1::Entry>& entries) override;
  verbena::Task<absl::Status> Watch(verbena::ServerContext& context,
                                    const v1::WatchRequest& request,
                                    verbena::ServerWriter<v1::Change>& changes) override;
  verbena::Task<absl::Status> Stats(verbena::ServerContext& context,
                                    const v1::StatsRequest& request,
                                    v1::StatsReply& reply) override;

 private:
  // Makes a write that its caller may repeat. Returns whether the key existed.
  verbena::Task<absl::StatusOr<bool>> Write(verbena::ServerContext& context, StoreWrite write,
                                            std::string reply_if_new, std::string reply_if_existed);

  // Memory for `value`, which is not empty, and `value` as it is when it has come.
  verbena::Task<absl::StatusOr<verbena::Buffer>> BufferFor(verbena::ServerContext& context,
                                                           std::string_view key,
                                                           std::string& value);

  Store& store_;
  DedupeRecords& records_;
  const size_t max_held_bytes_;
  std::atomic<size_t> held_bytes_ = 0;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_KV_SERVICE_H_
