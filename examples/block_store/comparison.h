// The demo's comparisons with a block store: the same files through the same disk by other means.
//
// Blocking calls on the main thread; those that take long end with CANCELLED when a signal comes.

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

// The files' SHA-256, in order, by read(2): what they must be after all the rest.
absl::StatusOr<std::vector<examples::Digest>> DigestsOfFiles(const std::string& root,
                                                             const Tree& tree,
                                                             examples::StopSignals& signals);

// cp of the whole tree to `to`, and a sync of that file system.
absl::StatusOr<examples::PhaseReport> CopyByCp(const std::string& from, const std::string& to,
                                               const Tree& tree, examples::StopSignals& signals);

// Each file below `root` from its begin to its end by read(2), `chunk` bytes at most at a time.
// They are dropped from the page cache before, as far as the kernel does that.
absl::StatusOr<examples::PhaseReport> ReadFiles(const std::string& root, const Tree& tree,
                                                size_t chunk, examples::StopSignals& signals);

// memcpy of `bytes`, `chunk` at a time, between two areas of memory larger than caches.
examples::PhaseReport CopyInMemory(uint64_t bytes, size_t chunk);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_COMPARISON_H_
