// Tree: the directories and files of a tree, and where in a volume their bytes lie.
//
// A value, without the files' contents. Layout() puts the files one behind the other, each at a
// block of its own, and Pieces() divides that into transfers: many small files at once, or a part
// of a large one. Encoded, it is the index of tree.proto, which Decode*() check to the last field:
// a volume may hold anything.
//
//   VERBENA_ASSIGN_OR_RETURN(LocalTree local, WalkTree("/usr/share/doc"));
//   local.tree.Layout();
//   for (const Piece& piece : local.tree.Pieces(1 << 20)) …

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_TREE_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_TREE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/sha256.h"

namespace block_store {

struct TreeEntry {
  std::string path;  // relative to the tree
  uint32_t mode = 0;
};

struct FileEntry {
  std::string path;
  uint32_t mode = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  examples::Digest sha256{};
};

// One transfer: whole files one behind the other, or a part of one.
struct Piece {
  size_t first_file = 0;
  size_t files = 0;
  uint64_t file_offset = 0;  // of the part in its file
  uint64_t offset = 0;       // in the volume
  uint64_t bytes = 0;        // whole blocks
};

// One file's part of a Piece.
struct FilePart {
  size_t file = 0;
  uint64_t file_offset = 0;
  size_t at = 0;     // in the piece
  size_t bytes = 0;  // of the file; zeros follow up to a block's end
};

// The index's place, size and digest.
struct TreeHeader {
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;
  examples::Digest index_sha256{};
};

class Tree {
 public:
  std::vector<TreeEntry> directories;  // each behind its parent
  std::vector<FileEntry> files;

  // Gives each file its place.
  void Layout();
  // The offset of the index, behind the last file. After Layout().
  uint64_t index_offset() const;
  // The bytes of the files.
  uint64_t bytes() const;
  // Pieces of at most `max_bytes`, a multiple of the block, in ascending order. Empty files are in
  // none.
  std::vector<Piece> Pieces(uint64_t max_bytes) const;
  std::vector<FilePart> PartsOf(const Piece& piece) const;
};

// Up to a multiple of the block.
uint64_t RoundUpToBlocks(uint64_t bytes);

std::string EncodeIndex(const Tree& tree);
// `index` is what was read, of `header.index_bytes` bytes. DATA_LOSS when it is not what was
// written; INVALID_ARGUMENT when that is no tree, or one with paths that lead elsewhere.
absl::StatusOr<Tree> DecodeIndex(const std::string& index, const TreeHeader& header);

// One block.
std::string EncodeHeader(const TreeHeader& header);
// The block that stands for the header until the tree is complete, and a test for it.
std::string EncodeUnfinishedHeader();
bool IsUnfinished(const std::string& block);
// NOT_FOUND when the block is no header; INVALID_ARGUMENT when what it says does not fit a volume
// of that size.
absl::StatusOr<TreeHeader> DecodeHeader(const std::string& block, uint64_t volume_bytes);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_TREE_H_
