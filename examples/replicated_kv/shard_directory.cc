#include "examples/replicated_kv/shard_directory.h"

#include <chrono>

#include "fmt/format.h"
#include "verbena/rpc/time.h"

namespace replicated_kv {

using verbena::EtcdEntry;
using verbena::EtcdRange;
using verbena::EtcdTxn;
using verbena::EtcdTxnResult;
using verbena::Task;

namespace {

// Also bounds how long a watch that has fallen silent can deceive.
constexpr std::chrono::seconds kReadAtLeastEvery(1);

}  // namespace

Task<absl::StatusOr<SeenState>> EtcdDirectory::Read() {
  VERBENA_CO_ASSIGN_OR_RETURN(const EtcdRange range, co_await etcd_.List(prefix_ + "/"));
  read_at_ = range.revision;
  co_return SeenIn(range.entries);
}

Task<absl::StatusOr<SeenState>> EtcdDirectory::Look() {
  VERBENA_CO_ASSIGN_OR_RETURN(const EtcdRange range, co_await etcd_.List(prefix_ + "/"));
  co_return SeenIn(range.entries);
}

Task<absl::Status> EtcdDirectory::Create(ShardState first) {
  co_return (co_await etcd_.Commit(
                 EtcdTxn().IfAbsent(state_key()).Put(state_key(), ShardStateText(first))))
      .status();
}

Task<absl::Status> EtcdDirectory::TakeOver(SeenState seen, ShardState next, int64_t lease,
                                           std::string address) {
  const std::string holder =
      fmt::format(R"({{"addresses":["{}"],"executors":1,"weight":1}})", address);
  co_return (co_await etcd_.Commit(EtcdTxn()
                                       .IfModRevision(state_key(), seen.revision)
                                       .IfAbsent(holder_key())
                                       .Put(state_key(), ShardStateText(next))
                                       .Put(holder_key(), holder, lease)))
      .status();
}

Task<absl::StatusOr<SeenState>> EtcdDirectory::Replace(SeenState seen, ShardState next,
                                                       int64_t lease) {
  VERBENA_CO_ASSIGN_OR_RETURN(const EtcdTxnResult result,
                              co_await etcd_.Commit(EtcdTxn()
                                                        .IfModRevision(state_key(), seen.revision)
                                                        .IfLease(holder_key(), lease)
                                                        .Put(state_key(), ShardStateText(next))
                                                        .OrGet(state_key())
                                                        .OrGet(holder_key())));
  if (!result.succeeded) co_return SeenIn(result.read);
  co_return SeenState{.state = std::move(next), .revision = result.revision, .holder_lease = lease};
}

Task<absl::Status> EtcdDirectory::Changed() {
  if (watch_ == nullptr) watch_ = etcd_.Watch(prefix_ + "/", read_at_ + 1);
  const absl::Status heard =
      (co_await verbena::WithDeadline(watch_->Next(), kReadAtLeastEvery)).status();
  if (heard.ok() || absl::IsDeadlineExceeded(heard)) co_return absl::OkStatus();
  // This watch is lost, or needs revisions that etcd has no more. Another begins at the next
  // Read().
  watch_.reset();
  co_return heard;
}

absl::StatusOr<SeenState> EtcdDirectory::SeenIn(const std::vector<EtcdEntry>& entries) const {
  SeenState seen;
  for (const EtcdEntry& entry : entries) {
    if (entry.key == holder_key()) seen.holder_lease = entry.lease;
    if (entry.key != state_key()) continue;
    seen.revision = entry.mod_revision;
    VERBENA_ASSIGN_OR_RETURN(seen.state, ParseShardState(entry.value));
  }
  if (seen.revision == 0) return absl::NotFoundError(state_key() + " is not in etcd");
  return seen;
}

}  // namespace replicated_kv
