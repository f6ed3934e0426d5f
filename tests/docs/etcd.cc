// The code of docs/guide.md that needs an etcd compiles. rpc/etcd.h's own tests run the like of it.

#include "verbena/rpc/etcd.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

namespace guide {

using verbena::EtcdClient;
using verbena::EtcdTxn;
using verbena::EtcdTxnResult;
using verbena::ServerOptions;
using verbena::Task;

ServerOptions RegisteredAs(std::string name);
Task<absl::StatusOr<bool>> BeginEpoch(EtcdClient& etcd, int64_t seen, std::string primary);

ServerOptions RegisteredAs(std::string name) {
  return {.registration = {.target = "etcd://10.0.0.1:2379,10.0.0.2:2379/storage",
                           .name = std::move(name),
                           .addresses = {"10.0.0.7:4000"}}};
}

// False: another one has moved the epoch.
Task<absl::StatusOr<bool>> BeginEpoch(EtcdClient& etcd, int64_t seen, std::string primary) {
  VERBENA_CO_ASSIGN_OR_RETURN(
      const EtcdTxnResult moved,
      co_await etcd.Commit(EtcdTxn()
                               .IfModRevision("shard-1/primary", seen)
                               .Put("shard-1/primary", std::move(primary))));
  co_return moved.succeeded;
}

}  // namespace guide
