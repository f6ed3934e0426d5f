// Index and header of a tree, as they lie in a volume.

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "examples/block_store/limits.h"
#include "examples/block_store/tree.h"
#include "examples/block_store/tree.pb.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace block_store {

using examples::Digest;
using examples::Sha256;

namespace {

constexpr std::string_view kMagic("verbena tree 1\n\0", 16);
constexpr std::string_view kUnfinished("verbena tree ?\n\0", 16);
constexpr size_t kLengthBytes = 4;
// (start) About a million files.
constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
constexpr uint32_t kPermissions = 0777;

std::string BytesOf(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

bool DigestFrom(const std::string& bytes, Digest& digest) {
  if (bytes.size() != digest.size()) return false;
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return true;
}

absl::Status BadTree(const std::string& why) {
  return absl::InvalidArgumentError("the volume's tree " + why);
}

// True if a relative path cannot lead out of its directory.
bool IsGoodPath(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const size_t end = path.find('/');
    const std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

// Checks that each path is good, is new, and lies in a directory that was added before.
class Paths {
 public:
  absl::Status AddDirectory(const std::string& path) {
    VERBENA_RETURN_IF_ERROR(Add(path));
    directories_.insert(path);
    return absl::OkStatus();
  }
  absl::Status Add(const std::string& path) {
    if (!IsGoodPath(path)) return BadTree("has the path '" + path + "'");
    if (!all_.insert(path).second) return BadTree("has the path '" + path + "' twice");
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || directories_.contains(path.substr(0, slash))) {
      return absl::OkStatus();
    }
    return BadTree("has no directory for '" + path + "'");
  }

 private:
  std::set<std::string> all_;
  std::set<std::string> directories_;
};

absl::Status AddFile(const v1::TreeFile& from, const TreeHeader& header, uint64_t& offset,
                     Tree& tree) {
  FileEntry file{.path = from.path(),
                 .mode = from.mode() & kPermissions,
                 .bytes = from.bytes(),
                 .offset = from.offset()};
  if (!DigestFrom(from.sha256(), file.sha256)) return BadTree("lacks a SHA-256");
  // `offset` is at most header.index_offset, so nothing here overflows.
  const bool fits = file.bytes <= header.index_offset - offset &&
                    RoundUpToBlocks(file.bytes) <= header.index_offset - offset;
  if (!fits || file.offset != (file.bytes == 0 ? 0 : offset)) {
    return BadTree("has '" + file.path + "' in a place where it cannot be");
  }
  offset += RoundUpToBlocks(file.bytes);
  tree.files.push_back(std::move(file));
  return absl::OkStatus();
}

}  // namespace

// --- The index -----------------------------------------------------------------------------------

std::string EncodeIndex(const Tree& tree) {
  v1::TreeIndex index;
  for (const TreeEntry& directory : tree.directories) {
    v1::TreeDirectory& to = *index.add_directories();
    to.set_path(directory.path);
    to.set_mode(directory.mode & kPermissions);
  }
  for (const FileEntry& file : tree.files) {
    v1::TreeFile& to = *index.add_files();
    to.set_path(file.path);
    to.set_mode(file.mode & kPermissions);
    to.set_offset(file.offset);
    to.set_bytes(file.bytes);
    to.set_sha256(BytesOf(file.sha256));
  }
  return index.SerializeAsString();
}

absl::StatusOr<Tree> DecodeIndex(const std::string& index, const TreeHeader& header) {
  if (Sha256(index) != header.index_sha256) {
    return absl::DataLossError("the index of the volume's tree has another SHA-256 than it had");
  }
  v1::TreeIndex from;
  if (!from.ParseFromString(index)) return BadTree("has an index that cannot be read");
  Tree tree;
  Paths paths;
  for (const v1::TreeDirectory& directory : from.directories()) {
    VERBENA_RETURN_IF_ERROR(paths.AddDirectory(directory.path()));
    tree.directories.push_back({directory.path(), directory.mode() & kPermissions});
  }
  uint64_t offset = kBlockBytes;
  for (const v1::TreeFile& file : from.files()) {
    VERBENA_RETURN_IF_ERROR(paths.Add(file.path()));
    VERBENA_RETURN_IF_ERROR(AddFile(file, header, offset, tree));
  }
  if (offset != header.index_offset) return BadTree("has a gap before its index");
  return tree;
}

// --- The header ----------------------------------------------------------------------------------

std::string EncodeHeader(const TreeHeader& header) {
  v1::TreeHeader to;
  to.set_index_offset(header.index_offset);
  to.set_index_bytes(header.index_bytes);
  to.set_index_sha256(BytesOf(header.index_sha256));
  const std::string message = to.SerializeAsString();
  std::string block(kMagic);
  for (size_t i = 0; i < kLengthBytes; ++i) {
    block += static_cast<char>(message.size() >> (8 * i) & 0xff);
  }
  block += message;
  block.resize(kBlockBytes);
  return block;
}

std::string EncodeUnfinishedHeader() {
  std::string block(kUnfinished);
  block.resize(kBlockBytes);
  return block;
}

bool IsUnfinished(const std::string& block) { return block == EncodeUnfinishedHeader(); }

absl::StatusOr<TreeHeader> DecodeHeader(const std::string& block, uint64_t volume_bytes) {
  if (block.size() != kBlockBytes || std::string_view(block).substr(0, kMagic.size()) != kMagic) {
    return absl::NotFoundError("the volume holds no tree, or one that was not stored to its end");
  }
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= size_t{static_cast<unsigned char>(block[kMagic.size() + i])} << (8 * i);
  }
  const size_t begin = kMagic.size() + kLengthBytes;
  v1::TreeHeader from;
  if (length > block.size() - begin || !from.ParseFromString(block.substr(begin, length))) {
    return BadTree("has a header that cannot be read");
  }
  TreeHeader header{.index_offset = from.index_offset(), .index_bytes = from.index_bytes()};
  if (!DigestFrom(from.index_sha256(), header.index_sha256)) return BadTree("lacks a SHA-256");
  if (header.index_bytes > kMaxIndexBytes) {
    return BadTree(
        fmt::format("has an index of {} bytes, of {} at most", header.index_bytes, kMaxIndexBytes));
  }
  if (header.index_offset % kBlockBytes != 0 || header.index_offset < kBlockBytes ||
      header.index_offset > volume_bytes ||
      RoundUpToBlocks(header.index_bytes) > volume_bytes - header.index_offset) {
    return BadTree("has its index behind the volume's end");
  }
  return header;
}

}  // namespace block_store
