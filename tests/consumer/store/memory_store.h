// A service of this workspace, written against Verbena as any user would.

#ifndef VERBENA_TESTS_CONSUMER_STORE_MEMORY_STORE_H_
#define VERBENA_TESTS_CONSUMER_STORE_MEMORY_STORE_H_

#include "absl/status/status.h"
#include "store/store.pb.h"
#include "store/store.verbena.pb.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/task.h"

namespace consumer::store {

class MemoryStore final : public Store::Service {
 public:
  verbena::Task<absl::Status> Get(verbena::ServerContext& context, const GetRequest& request,
                                  GetReply& reply) override;
};

}  // namespace consumer::store

#endif  // VERBENA_TESTS_CONSUMER_STORE_MEMORY_STORE_H_
