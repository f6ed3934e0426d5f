// KvService: kv.v1.KeyValue on a Store.
//
// Its handlers run on every executor of the server. They wait for the store, which never blocks an
// executor, and for memory for values. Streams wait for their callers; Watch looks for changes each
// millisecond, since another executor may make them. The store must outlive it.
//
//   kv::MemoryStore store(64 << 20);
//   kv::KvService service(store);
//   auto server = verbena::Server::Start(*runtime, {&service});

#ifndef VERBENA_EXAMPLES_KV_KV_SERVICE_H_
#define VERBENA_EXAMPLES_KV_KV_SERVICE_H_

#include "absl/status/status.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "examples/kv/store.h"
#include "verbena/rpc/server_context.h"
#include "verbena/rpc/server_stream.h"
#include "verbena/rpc/task.h"

namespace kv {

class KvService final : public v1::KeyValue::Service {
 public:
  explicit KvService(Store& store) : store_(store) {}

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
  Store& store_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_KV_SERVICE_H_
