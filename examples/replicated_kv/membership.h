// Membership: the in-sync set of a shard, as its primary changes it.
//
// A backup that is lost leaves the set in etcd first, and only then does the commit point go on
// without it. A backup that joins counts from before the transaction that adds it. So at each
// moment every member that etcd knows has all that is committed. One change at a time; the
// primary's, one for each of its epochs. One executor.
//
//   Membership members(directory, point, seen, "s1", lease);
//   VERBENA_CO_RETURN_IF_ERROR(co_await members.Remove("s2"));

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_MEMBERSHIP_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_MEMBERSHIP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "examples/replicated_kv/commit_point.h"
#include "examples/replicated_kv/shard_directory.h"
#include "examples/replicated_kv/shard_state.h"
#include "verbena/rpc/sync.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class Membership {
 public:
  Membership(ShardDirectory& directory, CommitPoint& point, SeenState seen, int64_t lease);

  const ShardState& state() const { return seen_.state; }

  // They return when etcd has said yes, and try until it says something. ABORTED: another primary
  // has taken over, or the lease has ended; this is over then. CANCELLED: the Task is cancelled,
  // and etcd may have either set. A replica that may be in it counts, until Remove().
  verbena::Task<absl::Status> Remove(std::string name);
  // Precondition: `name` has all that is committed.
  verbena::Task<absl::Status> Add(std::string name);

 private:
  verbena::Task<absl::Status> Change(const std::string& name, bool joins);
  void Count(const std::string& joining);

  ShardDirectory& directory_;
  CommitPoint& point_;
  SeenState seen_;
  const int64_t lease_;
  bool unsure_ = false;  // whether etcd has more than is seen
  verbena::Mutex changing_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_MEMBERSHIP_H_
