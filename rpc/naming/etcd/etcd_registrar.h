// EtcdRegistrar: keeps a server's key in etcd, under a lease of etcd's that it keeps alive.
//
// The lease is kept alive three times in its time to live, and the key is put again if somebody
// deleted it. If the lease has ended, because etcd or this server could not be reached for too
// long, the server registers again with a new one. A server with the same name takes the key over.
// One executor, but for registered().

#ifndef VERBENA_RPC_NAMING_ETCD_ETCD_REGISTRAR_H_
#define VERBENA_RPC_NAMING_ETCD_ETCD_REGISTRAR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/directory.h"
#include "verbena/transport/base/backoff.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class EtcdRegistrar final : public Registrar {
 public:
  EtcdRegistrar(EtcdOptions options, std::string key, std::string value, Duration ttl);
  // For tests: with a client, and pauses that `random`, which outlives it, decides.
  EtcdRegistrar(std::unique_ptr<EtcdClient> client, std::string key, std::string value,
                Duration ttl, Random& random);

  Task<void> Run() override;
  Task<absl::Status> Remove() override;
  bool registered() const override { return registered_; }

 private:
  // A new lease, and the key with it.
  Task<absl::Status> Register();
  // Until the lease is lost, or this is cancelled.
  Task<absl::Status> Keep();
  Task<absl::Status> KeepOnce();
  // Waits before the next attempt at what failed; false when cancelled.
  Task<bool> Pause(const absl::Status& failure);

  const EtcdOptions options_;
  const std::string key_;
  const std::string value_;
  const Duration ttl_;
  std::unique_ptr<EtcdClient> client_;
  int64_t lease_ = 0;  // 0: none
  Backoff pause_;
  std::string last_failure_;  // that the log has
  std::atomic<bool> registered_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_ETCD_REGISTRAR_H_
