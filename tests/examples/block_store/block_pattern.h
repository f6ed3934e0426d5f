// The content of blocks in crash tests. It tells which write of which block it is, and depends on
// both in every word, so that a torn block is recognized.

#ifndef VERBENA_TESTS_EXAMPLES_BLOCK_STORE_BLOCK_PATTERN_H_
#define VERBENA_TESTS_EXAMPLES_BLOCK_STORE_BLOCK_PATTERN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "examples/block_store/limits.h"

namespace block_store {

inline constexpr size_t kPatternWords = kBlockBytes / sizeof(uint64_t);
using PatternWords = std::array<uint64_t, kPatternWords>;

// The content of write number `sequence`, from 1 on, of `block`. Sequence 0 is a block that was
// never written: zeros.
inline PatternWords PatternOf(uint64_t block, uint64_t sequence) {
  PatternWords words{};
  if (sequence == 0) return words;
  words[0] = sequence;
  uint64_t state = block * 0x9e3779b97f4a7c15u + sequence;
  for (size_t i = 1; i < kPatternWords; ++i) {
    // splitmix64
    uint64_t mixed = (state += 0x9e3779b97f4a7c15u);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    words[i] = mixed ^ (mixed >> 31);
  }
  return words;
}

inline void WritePattern(char* data, uint64_t block, uint64_t sequence) {
  const PatternWords words = PatternOf(block, sequence);
  std::memcpy(data, words.data(), kBlockBytes);
}

// The sequence of the write that `data` holds. Empty if the block is torn, or is another block.
inline std::optional<uint64_t> ReadPattern(const char* data, uint64_t block) {
  uint64_t sequence = 0;
  std::memcpy(&sequence, data, sizeof(sequence));
  const PatternWords words = PatternOf(block, sequence);
  if (std::memcmp(data, words.data(), kBlockBytes) != 0) return std::nullopt;
  return sequence;
}

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_BLOCK_PATTERN_H_
