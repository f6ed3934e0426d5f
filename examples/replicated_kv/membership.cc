#include "examples/replicated_kv/membership.h"

#include "fmt/format.h"

namespace replicated_kv {

using verbena::Task;

Membership::Membership(ShardDirectory& directory, CommitPoint& point, SeenState seen, int64_t lease)
    : directory_(directory), point_(point), seen_(std::move(seen)), lease_(lease) {
  Count("");
}

Task<absl::Status> Membership::Remove(std::string name) {
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await changing_.Lock());
  if (!IsInSync(state(), name) && !unsure_) co_return absl::OkStatus();
  if (VERBENA_MUTANT(kCommitBeforeRemoval)) point_.SetMembers(Without(state(), name).in_sync);
  VERBENA_CO_RETURN_IF_ERROR(co_await Change(name, /*joins=*/false));
  Count("");
  co_return absl::OkStatus();
}

Task<absl::Status> Membership::Add(std::string name) {
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await changing_.Lock());
  if (IsInSync(state(), name) && !unsure_) co_return absl::OkStatus();
  // Others were committed while another change had its turn.
  if (!point_.HasAll(name)) {
    co_return absl::FailedPreconditionError(
        fmt::format("{} has entries up to {} on its disk, and later ones may be committed", name,
                    point_.DurableAt(name)));
  }
  // From now on: the transaction may take effect at any moment.
  Count(name);
  VERBENA_CO_RETURN_IF_ERROR(co_await Change(name, /*joins=*/true));
  Count("");
  co_return absl::OkStatus();
}

Task<absl::Status> Membership::Change(const std::string& name, bool joins) {
  for (;;) {
    const ShardState next = joins ? With(state(), name) : Without(state(), name);
    unsure_ = true;
    absl::StatusOr<SeenState> now = co_await directory_.Replace(seen_, next, lease_);
    // An answer from before what is seen proves nothing.
    const bool stale =
        now.ok() && now->revision < seen_.revision && !VERBENA_MUTANT(kStaleStateBelieved);
    if (!now.ok() || stale) {
      VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Sleep(kPause));
      continue;
    }
    if (now->state.epoch != state().epoch || now->holder_lease != lease_) {
      co_return absl::AbortedError(fmt::format("epoch {} is over: etcd has '{}', under {} lease",
                                               state().epoch, ShardStateText(now->state),
                                               now->holder_lease == 0 ? "no" : "another"));
    }
    // Only the primary of an epoch changes its set. If the state is another one than was asked for,
    // it is an earlier change, whose answer was lost.
    seen_ = *std::move(now);
    unsure_ = false;
    if (state() == next) co_return absl::OkStatus();
  }
}

void Membership::Count(const std::string& joining) {
  std::vector<std::string> counted = state().in_sync;
  if (!joining.empty()) counted.push_back(joining);
  point_.SetMembers(std::move(counted));
}

}  // namespace replicated_kv
