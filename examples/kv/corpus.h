// Corpus: the lines of text files, as the pieces under which the demo stores them.
//
// A line ends before each '\n', and at the end of a file that does not end with one. It is stored
// under its SHA-256 in hexadecimal; one that is too long for a value, in parts under "<SHA-256>#0",
// "#1" and so on. Lines are any bytes; an empty one is a line like any other.
//
// Immutable once loaded, so any thread may read it. Holds the files' bytes in memory, at most as
// many as Load() is allowed; pieces point into them.
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

// The value stored under one key.
struct Piece {
  static constexpr uint32_t kWholeLine = UINT32_MAX;

  std::string_view bytes;
  uint32_t part = kWholeLine;  // or the number of this part of the line
  examples::Digest line_digest;

  void AppendKey(std::string& key) const;
};

class Corpus {
 public:
  // NOT_FOUND, or whatever else is the matter, names the file; RESOURCE_EXHAUSTED when the files
  // have more than `max_bytes` together.
  static absl::StatusOr<Corpus> Load(const std::vector<std::string>& paths, uint64_t max_bytes);

  // Files that every Debian has: licence texts, and the copyright notice of each package.
  static std::vector<std::string> DefaultPaths();

  const std::vector<Piece>& pieces() const { return pieces_; }
  size_t files() const { return files_.size(); }
  size_t lines() const { return lines_; }
  // Lines that are stored in parts, and into how many.
  size_t long_lines() const { return long_lines_; }
  size_t parts() const { return parts_; }
  // The bytes of all pieces, also of those that are equal.
  uint64_t bytes() const { return bytes_; }
  // Keys that differ: equal lines share theirs.
  size_t distinct_keys() const { return distinct_keys_; }

 private:
  void AddFile(std::string content);
  void AddLine(std::string_view line);
  void CountDistinctKeys();

  std::deque<std::string> files_;  // whose strings never move
  std::vector<Piece> pieces_;
  size_t lines_ = 0;
  size_t long_lines_ = 0;
  size_t parts_ = 0;
  uint64_t bytes_ = 0;
  size_t distinct_keys_ = 0;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_CORPUS_H_
