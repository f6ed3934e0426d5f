// Succession: when a replica may take a shard that has no primary, beside the others in sync.
//
// A replica that a primary has sent entries since it started, or added to the set, has what it
// acknowledged: the primary saw to that. It lets one with a longer log go first for a moment, since
// that one need not be given a copy then. One that has just started has only what its disk kept. It
// may lack entries that the disk had synced, and those of the last seconds are in no bound that
// etcd has (ShardState). So it waits longer for those that do not answer, and never goes before one
// with a longer log.
//
// A value; one thread.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_SUCCESSION_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_SUCCESSION_H_

#include <cstdint>

#include "examples/replicated_kv/limits.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

// A replica keeps here what it knows of the others in sync.
struct Rivals {
  bool longer = false;  // one has a longer log
  bool first = false;   // one has a longer log, or as long a log and a name before its own
  bool silent = false;  // one does not say
};

class Succession {
 public:
  // Whether the replica may take the shard, which has had no primary since `revision` of its state.
  // Ask again after a while. `tested`: a primary has seen its log since it started.
  bool MayGo(int64_t revision, const Rivals& rivals, bool tested, verbena::TimePoint now) {
    if (revision != revision_) since_ = now;
    revision_ = revision;
    const verbena::Duration waited = now - since_;
    if (!tested && rivals.longer) return false;
    if (!tested && rivals.silent && waited < kRestartPatience) return false;
    return !rivals.first || waited >= kDeference;
  }

 private:
  int64_t revision_ = 0;
  verbena::TimePoint since_{};  // it was first asked at revision_
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_SUCCESSION_H_
