// TreeCopy: copies whole trees into volumes and out of them, for a program with a terminal.
//
// Called on a thread that runs no executor, with a runtime that has one executor. A line on
// standard error shows the progress. A signal ends a copy with CANCELLED. Runtime, channel and
// signals must outlive the TreeCopy.
//
//   TreeCopy copy(*runtime, channel, *signals, {.in_flight = 16});
//   VERBENA_ASSIGN_OR_RETURN(LocalTree local, WalkTree("/usr/share/doc"));
//   PhaseReport stored;
//   VERBENA_RETURN_IF_ERROR(copy.Store(local, "doc", stored));
//   VERBENA_ASSIGN_OR_RETURN(Tree tree, copy.ReadIndex("doc"));
//   PhaseReport read;
//   VERBENA_RETURN_IF_ERROR(copy.Read("doc", tree, ReadInto::kComparison, "", read));

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_TREE_COPY_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_TREE_COPY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/copy_work.h"
#include "examples/block_store/local_tree.h"
#include "examples/block_store/tree.h"
#include "examples/block_store/volume_client.h"
#include "examples/common/phase.h"
#include "examples/common/progress.h"
#include "examples/common/signals.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace block_store {

struct CopyOptions {
  int in_flight = 16;
  uint64_t request_bytes = uint64_t{256} << 10;  // a multiple of the block size
};

class TreeCopy {
 public:
  TreeCopy(verbena::Runtime& runtime, verbena::Channel& channel, examples::StopSignals& signals,
           const CopyOptions& options);

  // Stores the files in a new volume, or in one where an earlier Store() did not finish. The tree
  // is durable on return. `local.tree` gets offsets and digests. The time in `report` includes the
  // index and the flushes, but not the volume's creation. ALREADY_EXISTS if the volume holds
  // anything else; OUT_OF_RANGE if an unfinished volume is too small.
  absl::Status Store(LocalTree& local, const std::string& volume, examples::PhaseReport& report);

  // NOT_FOUND if there is no such volume, or it holds no complete tree.
  absl::StatusOr<Tree> ReadIndex(const std::string& volume);

  // Reads all files. For kFiles, MakeTree() must have made `directory`. DATA_LOSS if a file is not
  // as it was stored.
  absl::Status Read(const std::string& volume, const Tree& tree, ReadInto into,
                    const std::string& directory, examples::PhaseReport& report);

 private:
  absl::Status CheckInterrupted();
  verbena::Task<absl::Status> Begin(const VolumeClient& volume, uint64_t blocks);
  verbena::Task<absl::Status> Finish(const VolumeClient& volume, const Tree& tree);
  verbena::Task<absl::StatusOr<Tree>> Load(const VolumeClient& volume);

  verbena::Runtime& runtime_;
  verbena::Channel& channel_;
  examples::StopSignals& signals_;
  const CopyOptions options_;
  examples::Progress progress_;
};

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_TREE_COPY_H_
