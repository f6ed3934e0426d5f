// Tree: the directories and files of a tree, and where in a volume their bytes lie.
//
// A value, without the files' contents. Layout() places the files one after the other, each from
// the start of a block. Pieces() divides this layout into transfers: several small files, or a part
// of a large file. An encoded Tree is the index of tree.proto. The Decode functions check every
// field, because a volume may hold anything.
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

// One transfer: whole files one after the other, or a part of one file.
struct Piece {
  size_t first_file = 0;
  size_t files = 0;
  uint64_t file_offset = 0;  // of a part, in its file
  uint64_t offset = 0;       // in the volume
  uint64_t bytes = 0;        // whole blocks
};

// One file's part of a Piece.
struct FilePart {
  size_t file = 0;
  uint64_t file_offset = 0;
  size_t at = 0;     // its offset in the piece
  size_t bytes = 0;  // of the file; zeros follow up to the end of the block
};

// The index's offset, size and digest.
struct TreeHeader {
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;
  examples::Digest index_sha256{};
};

class Tree {
 public:
  std::vector<TreeEntry> directories;  // each after its parent
  std::vector<FileEntry> files;

  // Gives each file its offset.
  void Layout();
  // The offset of the index, which follows the last file. Only after Layout().
  uint64_t index_offset() const;
  // The size of all files together.
  uint64_t bytes() const;
  // Pieces of at most `max_bytes`, a multiple of the block size, in ascending order. No piece has
  // empty files.
  std::vector<Piece> Pieces(uint64_t max_bytes) const;
  std::vector<FilePart> PartsOf(const Piece& piece) const;
};

// Rounds up to a multiple of the block size.
uint64_t RoundUpToBlocks(uint64_t bytes);

std::string EncodeIndex(const Tree& tree);
// `index`: the `header.index_bytes` bytes that were read. DATA_LOSS if their SHA-256 is not the
// header's. INVALID_ARGUMENT if they are no valid tree, or a path would leave the tree.
absl::StatusOr<Tree> DecodeIndex(const std::string& index, const TreeHeader& header);

// Returns one block.
std::string EncodeHeader(const TreeHeader& header);
// The block that takes the header's place until the tree is complete, and a test for it.
std::string EncodeUnfinishedHeader();
bool IsUnfinished(const std::string& block);
// NOT_FOUND if the block is no header. INVALID_ARGUMENT if the header is damaged, or does not fit a
// volume of `volume_bytes`.
absl::StatusOr<TreeHeader> DecodeHeader(const std::string& block, uint64_t volume_bytes);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_TREE_H_
