// Corpus: the lines of text files, cut into the pieces that the demo stores.
//
// A line ends before each '\n', and at the end of a file that does not end with '\n'. Its key is
// its SHA-256 in hexadecimal. A line of more than kMaxPieceBytes is stored in parts, under the keys
// "<SHA-256>#0", "<SHA-256>#1" and so on. A line may hold any bytes, or none.
//
// Immutable once loaded, so any thread may read it. Holds the files' bytes in memory, at most
// Load()'s `max_bytes`. Pieces point into them.
//
//   absl::StatusOr<kv::Corpus> corpus = kv::Corpus::Load({"a.txt"}, 64 << 20);
//   corpus->AppendKey(corpus->pieces()[0], key);

#ifndef VERBENA_EXAMPLES_KV_CORPUS_H_
#define VERBENA_EXAMPLES_KV_CORPUS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/common/sha256.h"

namespace kv {

// The most bytes of a piece: as a payload it travels within a frame.
inline constexpr size_t kMaxPieceBytes = 4096;

// The value stored under one key.
struct Piece {
  static constexpr uint32_t kWholeLine = UINT32_MAX;

  std::string_view bytes;
  uint32_t part = kWholeLine;  // or the number of this part of its line
  examples::Digest line_digest;

  void AppendKey(std::string& key) const;
};

class Corpus {
 public:
  // NOT_FOUND and other errors of reading name the file. RESOURCE_EXHAUSTED if the files have more
  // than `max_bytes` together.
  static absl::StatusOr<Corpus> Load(const std::vector<std::string>& paths, uint64_t max_bytes);

  // Files that every Debian has: licence texts, and the copyright notice of each package.
  static std::vector<std::string> DefaultPaths();

  const std::vector<Piece>& pieces() const { return pieces_; }
  size_t files() const { return files_.size(); }
  size_t lines() const { return lines_; }
  // The number of lines that are stored in parts, and of all their parts.
  size_t long_lines() const { return long_lines_; }
  size_t parts() const { return parts_; }
  // The bytes of all pieces; equal pieces count each.
  uint64_t bytes() const { return bytes_; }
  // The number of different keys: equal lines share keys.
  size_t distinct_keys() const { return distinct_keys_; }

 private:
  void AddFile(std::string content);
  void AddLine(std::string_view line);
  void CountDistinctKeys();

  std::deque<std::string> files_;  // a deque, because pieces point into its strings
  std::vector<Piece> pieces_;
  size_t lines_ = 0;
  size_t long_lines_ = 0;
  size_t parts_ = 0;
  uint64_t bytes_ = 0;
  size_t distinct_keys_ = 0;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_CORPUS_H_
