#include "examples/replicated_kv/membership.h"

#include <utility>
#include <vector>

#include "examples/replicated_kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/time.h"
#include "verbena/transport/log/mutant.h"

namespace replicated_kv {

using verbena::Task;

Membership::Membership(ShardDirectory& directory, CommitPoint& point, SeenState seen, int64_t lease)
    : directory_(directory), point_(point), seen_(std::move(seen)), lease_(lease) {
  Count("");
}

Task<absl::Status> Membership::Remove(std::string name) {
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await changing_.Lock());
  if (!IsInSync(state(), name)) co_return absl::OkStatus();
  ShardState next = Without(state(), name);
  if (VERBENA_MUTANT(kCommitBeforeRemoval)) point_.SetMembers(next.in_sync);
  VERBENA_CO_RETURN_IF_ERROR(co_await Change(std::move(next)));
  Count("");
  co_return absl::OkStatus();
}

Task<absl::Status> Membership::Add(std::string name) {
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await changing_.Lock());
  if (IsInSync(state(), name)) co_return absl::OkStatus();
  // From now on: the transaction may take effect at any moment.
  Count(name);
  co_return co_await Change(With(state(), name));
}

Task<absl::Status> Membership::Change(ShardState next) {
  for (;;) {
    absl::StatusOr<SeenState> now = co_await directory_.Replace(seen_, next, lease_);
    // Only the primary of an epoch changes its set: a former attempt may have been this one.
    if (now.ok() && now->state == next && now->holder_lease == lease_) {
      seen_ = *std::move(now);
      co_return absl::OkStatus();
    }
    if (now.ok()) {
      co_return absl::AbortedError(
          fmt::format("epoch {} is over: etcd has '{}', under {}", seen_.state.epoch,
                      ShardStateText(now->state),
                      now->holder_lease == lease_ ? "this lease" : "another lease"));
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Sleep(kPause));
  }
}

void Membership::Count(const std::string& joining) {
  std::vector<std::string> counted = state().in_sync;
  if (!joining.empty()) counted.push_back(joining);
  point_.SetMembers(std::move(counted));
}

}  // namespace replicated_kv
