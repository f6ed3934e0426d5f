// KvService: kv.v1.KeyValue on a Store.
//
// Its handlers run on every executor of the server. They wait for the store, which never blocks an
// executor, and for memory for values. Streams wait for their callers; Watch looks for changes each
// millisecond, since another executor may make them. Store and records must outlive it.
//
//   kv::MemoryStore store(64 << 20);
//   kv::DedupeRecords records(store);
//   kv::KvService service(store, records);
//   auto server =
//       verbena::Server::Start(*runtime, {&service}, {.dedupe = {.store = &records}});

#ifndef VERBENA_EXAMPLES_KV_KV_SERVICE_H_
#define VERBENA_EXAMPLES_KV_KV_SERVICE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/dedupe_records.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "examples/kv/store.h"
#include "verbena/rpc/server_context.h"
#include "verbena/rpc/server_stream.h"
#include "verbena/rpc/task.h"

namespace kv {

class KvService final : public v1::KeyValue::Service {
 public:
  // `records` are those of `store`.
  KvService(Store& store, DedupeRecords& records) : store_(store), records_(records) {}

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
  // A write whose caller may repeat it. Returns whether the key existed.
  verbena::Task<absl::StatusOr<bool>> Write(verbena::ServerContext& context, StoreWrite write,
                                            std::string reply_if_new, std::string reply_if_existed);

  Store& store_;
  DedupeRecords& records_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_KV_SERVICE_H_
