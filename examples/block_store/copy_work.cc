#include "examples/block_store/copy_work.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "examples/block_store/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/file.h"
#include "verbena/rpc/task.h"

namespace block_store {

using examples::Digest;
using examples::Lane;
using verbena::Buffer;
using verbena::Clock;
using verbena::File;
using verbena::Task;
using verbena::TimePoint;

namespace {

uint64_t BytesOf(const std::vector<FilePart>& parts) {
  uint64_t sum = 0;
  for (const FilePart& part : parts) sum += part.bytes;
  return sum;
}

}  // namespace

// --- Digests -------------------------------------------------------------------------------------

Task<absl::Status> FileDigests::Add(const FilePart& part, const char* data, Digest& digest,
                                    bool& complete) {
  const uint64_t file_bytes = tree_.files[part.file].bytes;
  complete = true;
  if (part.bytes == file_bytes) {
    digest = examples::Sha256({data, part.bytes});
    co_return absl::OkStatus();
  }
  while (running_[part.file].bytes != part.file_offset) {
    if (abandoned_) co_return absl::CancelledError("another part of the file failed");
    changed_.Reset();
    VERBENA_CO_RETURN_IF_ERROR(co_await changed_.Wait());
  }
  Running& running = running_[part.file];
  running.stream.Add({data, part.bytes});
  running.bytes += part.bytes;
  complete = running.bytes == file_bytes;
  if (complete) {
    digest = running.stream.Finish();
    running_.erase(part.file);
  }
  changed_.Set();
  co_return absl::OkStatus();
}

void FileDigests::Abandon() {
  abandoned_ = true;
  changed_.Set();
}

// --- Workers -------------------------------------------------------------------------------------

Task<void> CopyWork::RunWorker(Lane& lane) {
  absl::Status status = co_await MoveAll(lane);
  if (status.ok()) co_return;
  // Before other workers are woken: their errors follow from this one, which must be the first.
  lane.Fail(std::move(status));
  digests_.Abandon();
}

Task<absl::Status> CopyWork::MoveAll(Lane& lane) {
  Buffer buffer;
  while (lane.may_go_on() && next_ < pieces_.size()) {
    if (!buffer) {
      // Before a piece is taken, so that no piece that others wait for lacks a buffer.
      VERBENA_CO_ASSIGN_OR_RETURN(buffer, co_await volume_.channel().AllocateBuffer(max_bytes_));
      continue;
    }
    const Piece& piece = pieces_[next_++];
    buffer.set_size(piece.bytes);
    VERBENA_CO_RETURN_IF_ERROR(co_await Move(lane, piece, buffer));
  }
  co_return absl::OkStatus();
}

// --- Storing -------------------------------------------------------------------------------------

Task<absl::Status> StoreWork::Move(Lane& lane, const Piece& piece, Buffer& buffer) {
  const std::vector<FilePart> parts = layout().PartsOf(piece);
  for (const FilePart& part : parts) {
    VERBENA_CO_RETURN_IF_ERROR(co_await ReadFilePart(part, buffer));
    const size_t end = part.at + part.bytes;
    std::memset(buffer.data() + end, 0, RoundUpToBlocks(part.bytes) - part.bytes);
    bool complete = false;
    VERBENA_CO_RETURN_IF_ERROR(co_await digests().Add(part, buffer.data() + part.at,
                                                      tree_.files[part.file].sha256, complete));
  }
  const TimePoint began = Clock::Real().Now();
  VERBENA_CO_RETURN_IF_ERROR(co_await volume().Write(piece.offset, buffer));
  lane.CountCall(began, BytesOf(parts));
  co_return absl::OkStatus();
}

Task<absl::Status> StoreWork::ReadFilePart(const FilePart& part, const Buffer& buffer) {
  const FileEntry& entry = tree_.files[part.file];
  VERBENA_CO_ASSIGN_OR_RETURN(
      const File file,
      co_await File::Open(root_ + "/" + entry.path, {.flags = O_RDONLY | O_NOFOLLOW}));
  VERBENA_CO_ASSIGN_OR_RETURN(
      const size_t bytes, co_await file.Read(buffer.Slice(part.at, part.bytes), part.file_offset));
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::FileStat about, co_await file.Stat());
  if (bytes == part.bytes && about.size == entry.bytes) co_return absl::OkStatus();
  co_return absl::AbortedError(
      fmt::format("{} had {} bytes and now has {}: it was changed while it was copied", file.path(),
                  entry.bytes, about.size));
}

// --- Reading back --------------------------------------------------------------------------------

Task<absl::Status> ReadWork::Move(Lane& lane, const Piece& piece, Buffer& buffer) {
  const std::vector<FilePart> parts = layout().PartsOf(piece);
  const TimePoint began = Clock::Real().Now();
  VERBENA_CO_RETURN_IF_ERROR(co_await volume().Read(piece.offset, buffer));
  lane.CountCall(began, BytesOf(parts));
  if (into_ == ReadInto::kNothing) co_return absl::OkStatus();
  for (const FilePart& part : parts) {
    VERBENA_CO_RETURN_IF_ERROR(co_await Compare(part, buffer));
    if (into_ == ReadInto::kFiles) {
      VERBENA_CO_RETURN_IF_ERROR(co_await WriteFilePart(part, buffer));
    }
  }
  co_return absl::OkStatus();
}

Task<absl::Status> ReadWork::Compare(const FilePart& part, const Buffer& buffer) {
  const FileEntry& entry = layout().files[part.file];
  Digest digest{};
  bool complete = false;
  VERBENA_CO_RETURN_IF_ERROR(
      co_await digests().Add(part, buffer.data() + part.at, digest, complete));
  if (!complete) co_return absl::OkStatus();
  if (digest != entry.sha256) {
    co_return absl::DataLossError(
        fmt::format("'{}' came back with another SHA-256 than it had", entry.path));
  }
  ++compared_;
  co_return absl::OkStatus();
}

Task<absl::Status> ReadWork::WriteFilePart(const FilePart& part, const Buffer& buffer) {
  VERBENA_CO_ASSIGN_OR_RETURN(const File file,
                              co_await File::Open(directory_ + "/" + layout().files[part.file].path,
                                                  {.flags = O_WRONLY | O_NOFOLLOW}));
  co_return co_await file.Write(buffer.Slice(part.at, part.bytes), part.file_offset);
}

}  // namespace block_store
