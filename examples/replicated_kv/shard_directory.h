// ShardDirectory: where the state of a shard lies, and who holds its lease: etcd.
//
// EtcdDirectory keeps two keys: prefix/state, a ShardState, which stays; and prefix/primary/holder,
// which lives under the lease of the primary. The latter has the form of a registered server, so
// that the target etcd://…/prefix/primary names the primary for clients. A change of the state is a
// transaction on its revision, so it fails if anybody has changed it since it was read. EtcdClient
// must outlive it. One executor.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_SHARD_DIRECTORY_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_SHARD_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/shard_state.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

struct SeenState {
  ShardState state;
  int64_t revision = 0;      // of the state
  int64_t holder_lease = 0;  // of the primary; 0: it has ended
};

// The part that changes the in-sync set.
class ShardDirectory {
 public:
  virtual ~ShardDirectory() = default;
  // Makes `next` the state, if the state is as seen and `lease` is the primary's. Returns the state
  // as it is afterwards. After an error it may be either.
  virtual verbena::Task<absl::StatusOr<SeenState>> Replace(SeenState seen, ShardState next,
                                                           int64_t lease) = 0;
};

class EtcdDirectory final : public ShardDirectory {
 public:
  EtcdDirectory(verbena::EtcdClient& etcd, std::string prefix)
      : etcd_(etcd), prefix_(std::move(prefix)) {}

  // NOT_FOUND: nobody has made the shard yet.
  verbena::Task<absl::StatusOr<SeenState>> Read();
  // The same, for others than the one who waits for Changed().
  verbena::Task<absl::StatusOr<SeenState>> Look();
  // Makes the shard, unless it is there.
  verbena::Task<absl::Status> Create(ShardState first);
  // Makes `next` the state, whose primary is at `address` as long as `lease` lasts, if the state is
  // as seen and nobody holds a lease. Read() tells how it went.
  verbena::Task<absl::Status> TakeOver(SeenState seen, ShardState next, int64_t lease,
                                       std::string address);
  verbena::Task<absl::StatusOr<SeenState>> Replace(SeenState seen, ShardState next,
                                                   int64_t lease) override;
  // Until something below the prefix may have changed since Read(); a second at most.
  verbena::Task<absl::Status> Changed();

 private:
  std::string state_key() const { return prefix_ + "/state"; }
  std::string holder_key() const { return prefix_ + "/primary/holder"; }
  absl::StatusOr<SeenState> SeenIn(const std::vector<verbena::EtcdEntry>& entries) const;

  verbena::EtcdClient& etcd_;
  const std::string prefix_;
  int64_t read_at_ = 0;  // the revision of the store
  std::unique_ptr<verbena::EtcdWatch> watch_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_SHARD_DIRECTORY_H_
