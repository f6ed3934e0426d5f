// The load that crash tests put on a volume until the crash, and the check of the blocks after it.
//
// Each writer has its own blocks. For each block it notes which write was sent, which was
// acknowledged and which was flushed. The notes lie in memory that outlives the crash.

#ifndef VERBENA_TESTS_EXAMPLES_BLOCK_STORE_CRASH_LOAD_H_
#define VERBENA_TESTS_EXAMPLES_BLOCK_STORE_CRASH_LOAD_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "examples/block_store/limits.h"
#include "gtest/gtest.h"
#include "tests/examples/block_store/block_pattern.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace block_store {

inline constexpr uint64_t kCrashWriters = 8;
inline constexpr uint64_t kBlocksOfWriter = 32;
inline constexpr uint64_t kCrashBlocks = kCrashWriters * kBlocksOfWriter;
inline constexpr uint64_t kMaxBlocksAtOnce = 8;

// Sequences of the last writes of one block. After a crash the block holds the write `flushed`, the
// write `sent` or one between. The process that crashes writes this; another may read it
// afterwards.
struct BlockState {
  std::atomic<uint64_t> sent;
  std::atomic<uint64_t> written;  // acknowledged
  std::atomic<uint64_t> flushed;
};

// `Target` has the store's calls on one volume: Allocate(bytes), Write(offset, buffer, flush) and
// Flush(). It may have OnFlushed(), which is called after each update of BlockState::flushed.
template <typename Target>
class CrashWriter {
 public:
  CrashWriter(const Target& target, uint64_t index, uint32_t seed, absl::Span<BlockState> blocks)
      : target_(target), first_(index * kBlocksOfWriter), random_(seed), blocks_(blocks) {}

  // Writes until a call fails.
  verbena::Task<void> Run(std::atomic<uint64_t>& acknowledged) {
    for (;;) {
      const absl::Status written = co_await WriteOnce();
      if (!written.ok()) co_return;
      ++acknowledged;
      acknowledged.notify_all();
    }
  }

 private:
  verbena::Task<absl::Status> WriteOnce() {
    const uint64_t count = 1 + random_() % kMaxBlocksAtOnce;
    const uint64_t begin = first_ + random_() % (kBlocksOfWriter - count + 1);
    const bool flush = random_() % 4 == 0;
    VERBENA_CO_ASSIGN_OR_RETURN(verbena::Buffer buffer,
                                co_await target_.Allocate(count * kBlockBytes));
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t block = begin + i;
      WritePattern(buffer.data() + i * kBlockBytes, block, ++blocks_[block].sent);
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await target_.Write(begin * kBlockBytes, buffer, flush));
    for (uint64_t i = begin; i < begin + count; ++i) blocks_[i].written = blocks_[i].sent.load();
    // The flush covers everything that this writer wrote before.
    if (flush) NoteFlushed();
    if (random_() % 8 != 0) co_return absl::OkStatus();
    VERBENA_CO_RETURN_IF_ERROR(co_await target_.Flush());
    NoteFlushed();
    co_return absl::OkStatus();
  }

  void NoteFlushed() {
    for (BlockState& block : blocks_.subspan(first_, kBlocksOfWriter)) {
      block.flushed = std::max(block.flushed.load(), block.written.load());
    }
    if constexpr (requires { target_.OnFlushed(); }) target_.OnFlushed();
  }

  const Target& target_;
  const uint64_t first_;
  std::mt19937 random_;
  const absl::Span<BlockState> blocks_;
};

// Checks the volume's blocks, read after the crash. Returns how many of them hold a write.
inline uint64_t CheckBlocksAfterCrash(const char* data, absl::Span<BlockState> blocks) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < blocks.size(); ++i) {
    const std::optional<uint64_t> sequence = ReadPattern(data + i * kBlockBytes, i);
    if (!sequence.has_value()) {
      ADD_FAILURE() << "block " << i << " is torn";
      continue;
    }
    EXPECT_GE(*sequence, blocks[i].flushed) << "block " << i << " has lost a flushed write";
    EXPECT_LE(*sequence, blocks[i].sent) << "block " << i;
    if (*sequence != 0) ++found;
  }
  return found;
}

// A new seed, or VERBENA_SEED, which replays a load as far as the machine's timing allows. The test
// prints it.
inline uint32_t CrashSeed() {
  const char* given = std::getenv("VERBENA_SEED");
  return given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10))
                          : std::random_device()();
}

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_CRASH_LOAD_H_
