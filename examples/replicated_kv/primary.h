// Primary: a replica while it leads its shard, in one epoch: it takes writes, sends them to the
// backups, and answers once the in-sync set has them.
//
// Begin() gives a write its place in the log; AwaitCommitted() returns when every member of the
// in-sync set has it on its disk, and this server still has its lease. A read of a key that has
// uncommitted writes waits for these, so nobody sees what may yet be lost. Nothing is answered
// before all of the log that this epoch found is committed.
//
// Shared by its Task Run() and by handlers that use it, on one executor. End() makes all of them
// fail and end. Store, log, directory, peers and term must outlive it.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_PRIMARY_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_PRIMARY_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/lease_term.h"
#include "examples/replicated_kv/membership.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/shard_directory.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

// Another replica of the shard, as etcd says where it is.
struct OtherReplica {
  std::string name;
  std::unique_ptr<verbena::Channel> channel;
};

// The parts of a replica that its primary uses.
struct PrimaryParts {
  uint32_t shard = 0;
  std::string name;
  ReplicaStore& store;
  ReplicaLog& log;
  ShardDirectory& directory;
  std::vector<OtherReplica>& peers;
  const LeaseTerm& term;
  int64_t lease = 0;
  verbena::Clock& clock;
};

enum class WriteKind { kPut, kAppend };

// A write's name, as its ServerContext tells it.
struct WriteName {
  verbena::RequestId id;
  uint64_t acknowledged_below = 0;
  uint64_t highest = 0;
};

class Primary {
 public:
  Primary(PrimaryParts parts, SeenState seen);

  // Feeds the backups until End(), or until this is cancelled.
  verbena::Task<void> Run();
  // From now on nothing is served. Any of its Tasks may call this.
  void End(std::string why);
  // No more writes begin, so that those under way can be committed.
  void StopTaking() { taking_ = false; }
  bool ended() const { return ended_; }
  uint64_t epoch() const { return members_.state().epoch; }

  // OK while it may answer, because it has its lease.
  absl::Status Serving() const;
  // Gives the write of a named call its place in the log, and returns that. If the log has the call
  // already, returns the sequence that it has there, with epoch 0. After OUT_OF_RANGE the call may
  // have run before; after any other error nothing was changed.
  verbena::Task<absl::StatusOr<LogPosition>> Begin(WriteKind kind, const v1::WriteRequest& request,
                                                   WriteName name);
  // After an error the write may be lost or not.
  verbena::Task<absl::Status> AwaitCommitted(uint64_t sequence);
  // The place of a call that is committed. None: the call has not run, and no other server runs it.
  verbena::Task<absl::StatusOr<std::optional<uint64_t>>> Lookup(verbena::RequestId id);
  verbena::Task<absl::StatusOr<std::optional<std::string>>> Get(std::string key);

  // For FollowReplica(): what a backup has on its disk.
  void NoteDurable(std::string_view name, uint64_t sequence);
  const CommitPoint& point() const { return point_; }
  Membership& members() { return members_; }
  const PrimaryParts& parts() const { return parts_; }

 private:
  // Notes what the own disk has whenever the log changes, or somebody has changed the in-sync set.
  verbena::Task<void> WatchOwnDisk();
  // Wakes those that wait for what is committed; all of them once this has ended.
  void WakeCommitted();
  // Whether an entry tells its client's highest number. A call with a higher number may have
  // overtaken the request, and be forgotten by now. That is impossible if no forgotten call of the
  // client stood after the entry `old`, which is older than any request that is under way.
  bool IsHighestExact(std::string_view client, uint64_t old) const {
    return old >= std::max(inherited_, parts_.store.names().forgotten_up_to(client));
  }
  // Tells etcd now and then how far the log is committed.
  verbena::Task<void> TellCommitted();
  verbena::Task<void> Follow(OtherReplica& peer);
  // Removes a backup from the in-sync set.
  verbena::Task<void> Remove(std::string name);
  // Ends if `changed` says that another primary has taken over.
  void NoteChange(const absl::Status& changed);
  // The key's value after all writes of the log.
  verbena::Task<absl::StatusOr<std::string>> NewestValue(const std::string& key);

  const PrimaryParts parts_;
  const uint64_t inherited_;  // the log's end when the epoch began
  CommitPoint point_;
  Membership members_;
  bool taking_ = true;
  bool ended_ = false;
  std::string why_ended_;
  verbena::CancelScope* running_ = nullptr;  // while Run() does
  verbena::Mutex ordering_;                  // of writes
  LogAge age_;
  std::deque<std::shared_ptr<const v1::Entry>> uncommitted_;
  // The newest entry of uncommitted_ for each key.
  absl::flat_hash_map<std::string, std::shared_ptr<const v1::Entry>> newest_;
  // AwaitCommitted() waits with an Event of its own, which lies in its coroutine's frame, and
  // stands here by the sequence that it waits for until it is woken. One Event for all would resume
  // each waiter at every step.
  std::multimap<uint64_t, verbena::Event*> waiting_;
};

// One stream of the log to a backup, from its first message to its end (follower.cc). Returns why
// it has ended.
verbena::Task<absl::Status> FollowReplica(Primary& primary, OtherReplica& peer);

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_PRIMARY_H_
