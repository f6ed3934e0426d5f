#include "tests/examples/block_store/logged_writes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"

namespace block_store {
namespace {

constexpr uint64_t kMagic = 0x6a736677736872;
constexpr uint64_t kVersion = 1;
constexpr uint64_t kFlush = 1 << 0;
constexpr uint64_t kFua = 1 << 1;
constexpr uint64_t kDiscard = 1 << 2;
constexpr uint64_t kMark = 1 << 3;

// The log's structures as they lie on the disk, little-endian.
struct SuperBlock {
  uint64_t magic;
  uint64_t version;
  uint64_t entries;
  uint32_t sector_bytes;
};
struct EntryHeader {
  uint64_t sector;
  uint64_t sectors;
  uint64_t flags;
  uint64_t data_bytes;  // of a mark's text, behind this header
};

template <typename T>
bool ReadAt(std::ifstream& log, uint64_t at, T& value) {
  log.seekg(static_cast<std::streamoff>(at));
  return static_cast<bool>(log.read(reinterpret_cast<char*>(&value), sizeof(value)));
}

}  // namespace

absl::StatusOr<LoggedWrites> LoggedWrites::Open(const std::string& path) {
  LoggedWrites writes(std::ifstream(path, std::ios::binary));
  if (!writes.log_) return absl::NotFoundError(path);
  absl::Status read = writes.ReadEntries();
  if (!read.ok()) return read;
  return writes;
}

absl::Status LoggedWrites::ReadEntries() {
  SuperBlock super;
  if (!ReadAt(log_, 0, super)) return absl::DataLossError("the log has no superblock");
  if (super.magic != kMagic || super.version != kVersion) {
    return absl::DataLossError(
        fmt::format("no log of writes: magic {:#x}, version {}", super.magic, super.version));
  }
  const uint64_t sector = super.sector_bytes;
  uint64_t at = sector;
  for (uint64_t i = 0; i < super.entries; ++i) {
    EntryHeader header;
    if (!ReadAt(log_, at, header)) {
      return absl::DataLossError(fmt::format("the log ends at entry {} of {}", i, super.entries));
    }
    Entry entry{.at = header.sector * sector,
                .bytes = header.sectors * sector,
                .flush = (header.flags & kFlush) != 0,
                .fua = (header.flags & kFua) != 0,
                .discard = (header.flags & kDiscard) != 0};
    if ((header.flags & kMark) != 0) {
      entry.mark.resize(std::min<uint64_t>(header.data_bytes, sector - sizeof(header)));
      log_.read(entry.mark.data(), static_cast<std::streamsize>(entry.mark.size()));
    }
    at += sector;
    entry.data_in_log = at;
    if (!entry.discard) at += entry.bytes;
    entries_.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status LoggedWrites::Apply(const Entry& entry, std::vector<char>& image) {
  if (entry.bytes == 0) return absl::OkStatus();
  if (entry.at > image.size() || entry.bytes > image.size() - entry.at) {
    return absl::DataLossError(
        fmt::format("{} bytes at {} of a disk of {}", entry.bytes, entry.at, image.size()));
  }
  char* const target = image.data() + entry.at;
  if (entry.discard) {
    std::memset(target, 0, entry.bytes);
    return absl::OkStatus();
  }
  log_.seekg(static_cast<std::streamoff>(entry.data_in_log));
  if (log_.read(target, static_cast<std::streamsize>(entry.bytes))) return absl::OkStatus();
  return absl::DataLossError(fmt::format("the log ends before {}", entry.data_in_log));
}

}  // namespace block_store
