#include "examples/block_store/volume_store.h"

#include <fcntl.h>

#include "examples/block_store/limits.h"
#include "fmt/format.h"
#include "verbena/transport/coro/status_macros.h"

namespace block_store {

using verbena::BufferView;
using verbena::File;
using verbena::FileStat;
using verbena::Task;

namespace {

constexpr mode_t kVolumeMode = 0640;

absl::Status FlushHasFailed(const Volume& volume) {
  return absl::FailedPreconditionError(
      fmt::format("a flush of volume '{}' has failed, and what was written before may be lost: it "
                  "takes no writes until the server has been restarted",
                  volume.name));
}

// Neither is cancelled: the kernel tells of a failed flush only once, and a Write that goes on
// behind its handler's back could land on what is written next.
Task<absl::Status> WriteToEnd(const File& file, BufferView data, uint64_t offset) {
  co_return co_await file.Write(data, offset).In(nullptr);
}
Task<absl::Status> FlushToEnd(const File& file) { co_return co_await file.Datasync().In(nullptr); }

// Makes the volume's file, whole and durable but for its name.
Task<absl::Status> MakeFile(Catalog::Claim& claim, uint64_t bytes, bool reserve) {
  if (reserve) VERBENA_CO_RETURN_IF_ERROR(claim.CheckSpace());
  VERBENA_CO_ASSIGN_OR_RETURN(
      File file, co_await File::Open(claim.temporary_path(),
                                     {.flags = O_RDWR | O_CREAT | O_EXCL, .mode = kVolumeMode}));
  VERBENA_CO_RETURN_IF_ERROR(claim.Extend());
  if (reserve) VERBENA_CO_RETURN_IF_ERROR(co_await file.Fallocate(0, bytes));
  VERBENA_CO_RETURN_IF_ERROR(co_await file.Sync());
  co_return co_await file.Close();
}

Task<absl::Status> SyncDirectory(std::string path) {
  VERBENA_CO_ASSIGN_OR_RETURN(
      const File directory,
      co_await File::Open(std::move(path), {.flags = O_RDONLY | O_DIRECTORY}));
  co_return co_await directory.Sync();
}

}  // namespace

absl::StatusOr<std::unique_ptr<VolumeStore>> VolumeStore::Open(
    const std::string& directory, const std::vector<verbena::Scheduler*>& executors) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::Open(directory));
  std::unique_ptr<VolumeStore> store(new VolumeStore(std::move(catalog)));
  for (verbena::Scheduler* executor : executors) store->shards_.emplace_back(*executor);
  return store;
}

Task<absl::Status> VolumeStore::Create(std::string name, uint64_t blocks, bool reserve) {
  VERBENA_CO_ASSIGN_OR_RETURN(Catalog::Claim claim, catalog_->Take(name, blocks));
  VERBENA_CO_RETURN_IF_ERROR(co_await MakeFile(claim, blocks * kBlockBytes, reserve));
  VERBENA_CO_RETURN_IF_ERROR(claim.Rename());
  VERBENA_CO_RETURN_IF_ERROR(co_await SyncDirectory(catalog_->directory()));
  claim.Commit();
  co_return absl::OkStatus();
}

absl::Status VolumeStore::CheckPlace(const Volume& volume, uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || offset % kBlockBytes != 0 || bytes % kBlockBytes != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} bytes at {} of volume '{}': offset and length are multiples of {}, and the "
                    "length is not 0",
                    bytes, offset, volume.name, kBlockBytes));
  }
  if (bytes > kMaxTransferBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} bytes of volume '{}': a transfer is {} bytes at most", bytes, volume.name,
                    kMaxTransferBytes));
  }
  if (offset > volume.bytes() || bytes > volume.bytes() - offset) {
    return absl::OutOfRangeError(fmt::format("{} bytes at {} end behind volume '{}', which has {}",
                                             bytes, offset, volume.name, volume.bytes()));
  }
  return absl::OkStatus();
}

Task<absl::Status> VolumeStore::Read(const std::string& name, uint64_t offset, BufferView into) {
  VERBENA_CO_ASSIGN_OR_RETURN(const OpenVolume* open, co_await Use(name));
  VERBENA_CO_RETURN_IF_ERROR(CheckPlace(*open->volume, offset, into.size()));
  VERBENA_CO_ASSIGN_OR_RETURN(const size_t bytes, co_await open->file.Read(into, offset));
  if (bytes == into.size()) co_return absl::OkStatus();
  co_return absl::DataLossError(
      fmt::format("{} ends at {}: it has been truncated", open->volume->path, offset + bytes));
}

Task<absl::Status> VolumeStore::Write(const std::string& name, uint64_t offset, BufferView data,
                                      bool flush) {
  VERBENA_CO_ASSIGN_OR_RETURN(OpenVolume * open, co_await Use(name));
  Volume& volume = *open->volume;
  VERBENA_CO_RETURN_IF_ERROR(CheckPlace(volume, offset, data.size()));
  if (volume.flush_failed.load(std::memory_order_relaxed)) co_return FlushHasFailed(volume);
  VERBENA_CO_RETURN_IF_ERROR(co_await WriteToEnd(open->file, data, offset));
  if (!flush) co_return absl::OkStatus();
  co_return co_await Flush(*open);
}

Task<absl::Status> VolumeStore::Flush(const std::string& name) {
  VERBENA_CO_ASSIGN_OR_RETURN(OpenVolume * open, co_await Use(name));
  co_return co_await Flush(*open);
}

Task<absl::Status> VolumeStore::Flush(OpenVolume& open) {
  Volume& volume = *open.volume;
  if (volume.flush_failed.load(std::memory_order_relaxed)) co_return FlushHasFailed(volume);
  absl::Status status = co_await FlushToEnd(open.file);
  if (!status.ok()) volume.flush_failed.store(true, std::memory_order_relaxed);
  co_return status;
}

Task<absl::StatusOr<VolumeInfo>> VolumeStore::Stat(const std::string& name) {
  VERBENA_CO_ASSIGN_OR_RETURN(const OpenVolume* open, co_await Use(name));
  VERBENA_CO_ASSIGN_OR_RETURN(const FileStat about, co_await open->file.Stat());
  co_return VolumeInfo{.name = open->volume->name,
                       .blocks = open->volume->blocks,
                       .allocated_bytes = about.allocated_bytes,
                       .direct = open->file.direct()};
}

VolumeStore::Shard* VolumeStore::ShardHere() {
  for (Shard& shard : shards_) {
    if (shard.executor == verbena::Scheduler::Current()) return &shard;
  }
  return nullptr;
}

Task<absl::StatusOr<VolumeStore::OpenVolume*>> VolumeStore::Use(const std::string& name) {
  Shard* shard = ShardHere();
  if (shard == nullptr) {
    co_return absl::FailedPreconditionError("the volumes were not opened for this executor");
  }
  if (const auto found = shard->volumes.find(name); found != shard->volumes.end()) {
    co_return found->second.get();
  }
  VERBENA_CO_ASSIGN_OR_RETURN(Volume * volume, catalog_->Find(name));
  VERBENA_CO_ASSIGN_OR_RETURN(File file,
                              co_await File::Open(volume->path, {.flags = O_RDWR, .direct = true}));
  // Another call may have been faster, and its file is in use.
  const auto added = shard->volumes.try_emplace(name, nullptr);
  if (added.second) added.first->second.reset(new OpenVolume{volume, std::move(file)});
  co_return added.first->second.get();
}

}  // namespace block_store
