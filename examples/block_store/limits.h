// The bounds of the block store. block_store.proto tells them to users.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_LIMITS_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace block_store {

// The size of a volume's blocks; offsets and lengths are multiples of it.
inline constexpr uint64_t kBlockBytes = 4096;

// One Write or Read moves at most this.
inline constexpr uint64_t kMaxTransferBytes = uint64_t{16} << 20;

// All transfers of a client in flight together: half of an executor's default budget for sending,
// and for landings (MemoryBudgets).
inline constexpr uint64_t kMaxBytesInFlight = uint64_t{64} << 20;

// The payload of one message of Export, and the most of one message of Import.
inline constexpr uint64_t kExportPartBytes = uint64_t{256} << 10;
inline constexpr uint64_t kMaxImportPartBytes = uint64_t{1} << 20;

// 8 TiB: every file system that Debian makes by default holds such a file.
inline constexpr uint64_t kMaxVolumeBlocks = uint64_t{1} << 31;

// Each volume in use costs one descriptor per executor of the server.
inline constexpr size_t kMaxVolumes = 256;

inline constexpr size_t kMaxNameBytes = 64;

// Entries of one page of List; a page fits a message of one frame.
inline constexpr size_t kMaxPageEntries = 32;

static_assert(kMaxTransferBytes % kBlockBytes == 0, "the largest transfer is one of whole blocks");

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_LIMITS_H_
