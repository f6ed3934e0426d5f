#include "store/memory_store.h"

#include "rpc/service.h"

namespace consumer::store {

verbena::Task<absl::Status> MemoryStore::Get(verbena::ServerContext& /*context*/,
                                             const GetRequest& request, GetReply& reply) {
  if (request.key().empty()) co_return absl::InvalidArgumentError("a key is not empty");
  reply.set_value(request.key() + " is " + kWhoseHeader);
  co_return absl::OkStatus();
}

}  // namespace consumer::store
