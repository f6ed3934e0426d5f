// ShardDirectory: the state of a shard and the holder of its lease, as etcd keeps them.
//
// EtcdDirectory keeps two keys: prefix/state, a ShardState, which stays; and prefix/primary/holder,
// which lives under the lease of the primary. The latter has the form of a registered server, so
// that the target etcd://…/prefix/primary names the primary for clients. A change of the state is a
// transaction on its revision, so it fails if anybody has changed it since it was read. EtcdClient
// must outlive it. One executor.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_SHARD_DIRECTORY_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_SHARD_DIRECTORY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/shard_state.h"
#include "fmt/format.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

struct SeenState {
  ShardState state;
  int64_t revision = 0;      // of the state
  int64_t holder_lease = 0;  // the primary's lease; 0: it has ended
};

// The part of EtcdDirectory that Membership uses to change the in-sync set.
class ShardDirectory {
 public:
  virtual ~ShardDirectory() = default;
  // Makes `next` the state, if the state is as seen and `lease` is the primary's. Returns the state
  // as it is afterwards. After an error the state may be the old or the new one.
  virtual verbena::Task<absl::StatusOr<SeenState>> Replace(SeenState seen, ShardState next,
                                                           int64_t lease) = 0;
};

class EtcdDirectory final : public ShardDirectory {
 public:
  EtcdDirectory(verbena::EtcdClient& etcd, std::string prefix)
      : etcd_(etcd), prefix_(std::move(prefix)) {}

  // NOT_FOUND: nobody has made the shard yet.
  verbena::Task<absl::StatusOr<SeenState>> Read() {
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::EtcdRange range, co_await etcd_.List(prefix_ + "/"));
    read_at_ = range.revision;
    co_return SeenIn(range.entries);
  }
  // Read() for callers that do not wait for Changed().
  verbena::Task<absl::StatusOr<SeenState>> Look() {
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::EtcdRange range, co_await etcd_.List(prefix_ + "/"));
    co_return SeenIn(range.entries);
  }
  // Makes the shard, unless it is there.
  verbena::Task<absl::Status> Create(ShardState first) {
    co_return (
        co_await etcd_.Commit(
            verbena::EtcdTxn().IfAbsent(state_key()).Put(state_key(), ShardStateText(first))))
        .status();
  }
  // Makes `next` the state, whose primary is at `address` as long as `lease` lasts, if the state is
  // as seen and nobody holds a lease. Read() tells how it went.
  verbena::Task<absl::Status> TakeOver(SeenState seen, ShardState next, int64_t lease,
                                       std::string address) {
    const std::string holder =
        fmt::format(R"({{"addresses":["{}"],"executors":1,"weight":1}})", address);
    co_return (co_await etcd_.Commit(verbena::EtcdTxn()
                                         .IfModRevision(state_key(), seen.revision)
                                         .IfAbsent(holder_key())
                                         .Put(state_key(), ShardStateText(next))
                                         .Put(holder_key(), holder, lease)))
        .status();
  }
  verbena::Task<absl::StatusOr<SeenState>> Replace(SeenState seen, ShardState next,
                                                   int64_t lease) override {
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::EtcdTxnResult result,
                                co_await etcd_.Commit(verbena::EtcdTxn()
                                                          .IfModRevision(state_key(), seen.revision)
                                                          .IfLease(holder_key(), lease)
                                                          .Put(state_key(), ShardStateText(next))
                                                          .OrGet(state_key())
                                                          .OrGet(holder_key())));
    if (!result.succeeded) co_return SeenIn(result.read);
    co_return SeenState{
        .state = std::move(next), .revision = result.revision, .holder_lease = lease};
  }
  // Waits until something below the prefix may have changed since Read(), a second at most.
  verbena::Task<absl::Status> Changed() {
    if (watch_ == nullptr) watch_ = etcd_.Watch(prefix_ + "/", read_at_ + 1);
    const absl::Status heard =
        (co_await verbena::WithDeadline(watch_->Next(), kReadAtLeastEvery)).status();
    if (heard.ok() || absl::IsDeadlineExceeded(heard)) co_return absl::OkStatus();
    // This watch is lost, or needs revisions that etcd has no more. Another begins at the next
    // Read().
    watch_.reset();
    co_return heard;
  }

 private:
  // Also bounds how long a watch that has fallen silent can deceive.
  static constexpr std::chrono::seconds kReadAtLeastEvery{1};

  std::string state_key() const { return prefix_ + "/state"; }
  std::string holder_key() const { return prefix_ + "/primary/holder"; }
  absl::StatusOr<SeenState> SeenIn(const std::vector<verbena::EtcdEntry>& entries) const {
    SeenState seen;
    for (const verbena::EtcdEntry& entry : entries) {
      if (entry.key == holder_key()) seen.holder_lease = entry.lease;
      if (entry.key != state_key()) continue;
      seen.revision = entry.mod_revision;
      VERBENA_ASSIGN_OR_RETURN(seen.state, ParseShardState(entry.value));
    }
    if (seen.revision == 0) return absl::NotFoundError(state_key() + " is not in etcd");
    return seen;
  }

  verbena::EtcdClient& etcd_;
  const std::string prefix_;
  int64_t read_at_ = 0;  // the revision of the store
  std::unique_ptr<verbena::EtcdWatch> watch_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_SHARD_DIRECTORY_H_
