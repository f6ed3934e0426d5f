// BackupProgress: whether a backup's disk takes what the backup is sent. A backup that goes on to
// answer, but whose disk is stuck, would hold up each write for as long as it is in sync.
//
// Told of each answer. A value; one thread.
//
//   if (progress.IsStuck(sent, acknowledgement.durable().sequence(), clock.Now())) … it is lost …

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_BACKUP_PROGRESS_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_BACKUP_PROGRESS_H_

#include <cstdint>

#include "examples/replicated_kv/limits.h"
#include "verbena/rpc/time.h"
#include "verbena/transport/log/mutant.h"

namespace replicated_kv {

class BackupProgress {
 public:
  // The backup was sent entries up to `sent`, and says now that its disk has those up to `durable`.
  // True if it lacks one that it was sent more than kDiskPatience ago, as far as its answers tell:
  // that may be twice as long.
  bool IsStuck(uint64_t sent, uint64_t durable, verbena::TimePoint now) {
    if (durable >= awaited_) {
      awaited_ = sent;
      since_ = now;
    }
    return durable < awaited_ && now - since_ > kDiskPatience && !VERBENA_MUTANT(kStuckBackupKept);
  }

 private:
  uint64_t awaited_ = 0;  // the last entry when the disk was last seen to have all awaited before
  verbena::TimePoint since_{};
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_BACKUP_PROGRESS_H_
