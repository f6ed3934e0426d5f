// The demo's comparisons with the block store: other ways to move the same files on the same disk.
//
// All calls block the main thread. Those that return a status end with CANCELLED if a signal comes.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_COMPARISON_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/tree.h"
#include "examples/common/phase.h"
#include "examples/common/sha256.h"
#include "examples/common/signals.h"

namespace block_store {

// The files' expected SHA-256, in the tree's order, of bytes that read(2) returns.
absl::StatusOr<std::vector<examples::Digest>> DigestsOfFiles(const std::string& root,
                                                             const Tree& tree,
                                                             examples::StopSignals& signals);

// Copies the whole tree to `to` by cp, and syncs the file system of `to`.
absl::StatusOr<examples::PhaseReport> CopyByCp(const std::string& from, const std::string& to,
                                               const Tree& tree, examples::StopSignals& signals);

// Reads each file below `root` by read(2), at most `chunk` bytes at a time. Asks the kernel first
// to drop the files from the page cache.
absl::StatusOr<examples::PhaseReport> ReadFiles(const std::string& root, const Tree& tree,
                                                size_t chunk, examples::StopSignals& signals);

// Copies `bytes` by memcpy, `chunk` at a time, between two areas of memory larger than caches.
examples::PhaseReport CopyInMemory(uint64_t bytes, size_t chunk);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_COMPARISON_H_
