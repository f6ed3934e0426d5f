#include "examples/block_store/tree.h"

#include <algorithm>

#include "examples/block_store/limits.h"

namespace block_store {

uint64_t RoundUpToBlocks(uint64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

void Tree::Layout() {
  uint64_t offset = kBlockBytes;  // behind the header
  for (FileEntry& file : files) {
    file.offset = file.bytes == 0 ? 0 : offset;
    offset += RoundUpToBlocks(file.bytes);
  }
}

uint64_t Tree::index_offset() const {
  uint64_t offset = kBlockBytes;
  for (const FileEntry& file : files) offset += RoundUpToBlocks(file.bytes);
  return offset;
}

uint64_t Tree::bytes() const {
  uint64_t sum = 0;
  for (const FileEntry& file : files) sum += file.bytes;
  return sum;
}

std::vector<Piece> Tree::Pieces(uint64_t max_bytes) const {
  std::vector<Piece> pieces;
  bool may_grow = false;
  for (size_t i = 0; i < files.size(); ++i) {
    const uint64_t rounded = RoundUpToBlocks(files[i].bytes);
    if (rounded == 0) continue;
    if (may_grow && pieces.back().bytes + rounded <= max_bytes) {
      Piece& last = pieces.back();
      last.files = i + 1 - last.first_file;
      last.bytes += rounded;
      continue;
    }
    may_grow = rounded <= max_bytes;
    for (uint64_t done = 0; done < rounded; done += max_bytes) {
      pieces.push_back({.first_file = i,
                        .files = 1,
                        .file_offset = done,
                        .offset = files[i].offset + done,
                        .bytes = std::min(max_bytes, rounded - done)});
    }
  }
  return pieces;
}

std::vector<FilePart> Tree::PartsOf(const Piece& piece) const {
  std::vector<FilePart> parts;
  uint64_t at = 0;
  for (size_t i = piece.first_file; i < piece.first_file + piece.files; ++i) {
    if (files[i].bytes == 0) continue;
    const uint64_t left = files[i].bytes - piece.file_offset;
    const uint64_t bytes = std::min(left, piece.bytes - at);
    parts.push_back({.file = i,
                     .file_offset = piece.file_offset,
                     .at = static_cast<size_t>(at),
                     .bytes = static_cast<size_t>(bytes)});
    at += RoundUpToBlocks(bytes);
  }
  return parts;
}

}  // namespace block_store
