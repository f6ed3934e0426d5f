#include "examples/block_store/volume_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>

#include "examples/block_store/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/file.h"
#include "verbena/rpc/log.h"
#include "verbena/rpc/task.h"

namespace block_store {

using verbena::BufferView;
using verbena::File;
using verbena::FileStat;
using verbena::Task;
using Step = Catalog::Claim::Step;

namespace {

constexpr mode_t kVolumeMode = 0640;

absl::Status FlushHasFailed(const Volume& volume) {
  return absl::FailedPreconditionError(
      fmt::format("a flush of volume '{}' has failed, and what was written before may be lost: it "
                  "takes no writes until the server has been restarted",
                  volume.name));
}

// Not cancelled: a Write that goes on after its handler has ended could overwrite later data.
Task<absl::Status> WriteToEnd(const File& file, BufferView data, uint64_t offset) {
  co_return co_await file.Write(data, offset).In(nullptr);
}

// One flush under way. Unless it is known to have succeeded, the volume is marked as failed: also
// if the flush's Task is destroyed, because then nobody hears what the kernel reports.
class FlushVerdict {
 public:
  explicit FlushVerdict(Volume& volume) : volume_(volume) {}
  FlushVerdict(const FlushVerdict&) = delete;
  FlushVerdict& operator=(const FlushVerdict&) = delete;
  ~FlushVerdict() {
    if (!succeeded_) volume_.flush_failed.store(true, std::memory_order_relaxed);
  }

  void Succeed() { succeeded_ = true; }

 private:
  Volume& volume_;
  bool succeeded_ = false;
};

// --- Making a volume -----------------------------------------------------------------------------

// Blocks its thread: io_uring has no truncate before Linux 6.9.
absl::Status Extend(const Catalog::Claim& claim) {
  const Volume& volume = claim.volume();
  if (truncate(claim.temporary_path().c_str(), static_cast<off_t>(volume.bytes())) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  const std::string what = fmt::format("a volume of {} blocks", volume.blocks);
  if (error == EFBIG) return absl::OutOfRangeError(what + ": the file system's files are smaller");
  return absl::ErrnoToStatus(error, what);
}

// Blocks its thread. RESOURCE_EXHAUSTED unless the disk has space for the whole volume now.
absl::Status CheckSpace(const Volume& volume, const std::string& directory) {
  struct statvfs about;
  if (statvfs(directory.c_str(), &about) != 0) {
    return absl::ErrnoToStatus(errno, "statvfs of " + directory);
  }
  const uint64_t available = uint64_t{about.f_bavail} * about.f_frsize;
  if (volume.bytes() <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("volume '{}' of {} bytes does not fit the disk of {}, which has {} left",
                  volume.name, volume.bytes(), directory, available));
}

// Makes the volume's file, whole and durable but for its name.
Task<absl::Status> MakeFile(Catalog::Claim& claim, bool reserve) {
  VERBENA_CO_ASSIGN_OR_RETURN(
      File file, co_await File::Open(claim.temporary_path(),
                                     {.flags = O_RDWR | O_CREAT | O_EXCL, .mode = kVolumeMode}));
  claim.Note(Step::kMade);
  VERBENA_CO_RETURN_IF_ERROR(co_await verbena::RunBlocking([&] { return Extend(claim); }));
  if (reserve) VERBENA_CO_RETURN_IF_ERROR(co_await file.Fallocate(0, claim.volume().bytes()));
  VERBENA_CO_RETURN_IF_ERROR(co_await file.Sync());
  co_return co_await file.Close();
}

// Replaces nothing: a file of that name which the catalog does not know belongs to somebody else.
Task<absl::Status> GiveName(Catalog::Claim& claim) {
  claim.Note(Step::kRenaming);
  absl::Status renamed =
      co_await verbena::RenameFile(claim.temporary_path(), claim.path(), RENAME_NOREPLACE);
  claim.Note(renamed.ok() ? Step::kRenamed : Step::kMade);
  if (!absl::IsAlreadyExists(renamed)) co_return renamed;
  co_return absl::AlreadyExistsError(
      fmt::format("{} is there already, and no volume of this server: move it away", claim.path()));
}

Task<absl::Status> MakeVolume(Catalog::Claim& claim, std::string directory, bool reserve) {
  if (reserve) {
    VERBENA_CO_RETURN_IF_ERROR(
        co_await verbena::RunBlocking([&] { return CheckSpace(claim.volume(), directory); }));
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await MakeFile(claim, reserve));
  VERBENA_CO_RETURN_IF_ERROR(co_await GiveName(claim));
  co_return co_await verbena::SyncDirectory(directory);
}

// Removes the file that a failed MakeVolume() left. A crash now may leave the whole volume, or
// none.
Task<absl::Status> RemoveRest(Catalog::Claim& claim) {
  if (claim.step() == Step::kTaken) co_return absl::OkStatus();
  absl::Status removed = co_await verbena::RemoveFile(
      claim.step() == Step::kMade ? claim.temporary_path() : claim.path());
  if (removed.ok()) claim.Note(Step::kTaken);
  co_return removed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VolumeStore>> VolumeStore::Open(
    const std::string& directory, const std::vector<verbena::Executor*>& executors) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::Open(directory));
  std::unique_ptr<VolumeStore> store(new VolumeStore(std::move(catalog)));
  for (verbena::Executor* executor : executors) store->shards_.emplace_back(*executor);
  return store;
}

Task<absl::Status> VolumeStore::Create(std::string name, uint64_t blocks, bool reserve) {
  VERBENA_CO_ASSIGN_OR_RETURN(Catalog::Claim claim, catalog_->Take(name, blocks));
  // Not cancelled half-way: the kernel could still rename the file, unknown to the catalog.
  absl::Status made = co_await MakeVolume(claim, catalog_->directory(), reserve).In(nullptr);
  if (made.ok()) {
    claim.Commit();
    co_return absl::OkStatus();
  }
  absl::Status removed = co_await RemoveRest(claim).In(nullptr);
  if (!removed.ok()) verbena::Log(verbena::LogLevel::kWarning, removed.ToString());
  co_return made;
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
  co_return co_await FlushVolume(volume);
}

// --- Flushing ------------------------------------------------------------------------------------

Task<absl::Status> VolumeStore::Flush(const std::string& name) {
  VERBENA_CO_ASSIGN_OR_RETURN(const OpenVolume* open, co_await Use(name));
  co_return co_await FlushVolume(*open->volume);
}

verbena::Executor& VolumeStore::FlusherOf(const Volume& volume) const {
  return *shards_[std::hash<std::string>()(volume.name) % shards_.size()].executor;
}

// Not cancelled: its result also says whether data of other callers is lost.
Task<absl::Status> VolumeStore::FlushVolume(const Volume& volume) {
  co_return co_await verbena::RunOn(FlusherOf(volume), FlushHere(volume.name)).In(nullptr);
}

Task<absl::Status> VolumeStore::FlushHere(std::string name) {
  VERBENA_CO_ASSIGN_OR_RETURN(OpenVolume * open, co_await Use(name));
  Volume& volume = *open->volume;
  // Only a flush that begins from now on covers what the caller wrote.
  const uint64_t covering = open->flushes_begun + 1;
  VERBENA_CO_RETURN_IF_ERROR(co_await open->flush_turn.Acquire());
  const verbena::SemaphoreHold hold(open->flush_turn);
  if (volume.flush_failed.load(std::memory_order_relaxed)) co_return FlushHasFailed(volume);
  if (open->flushes_begun >= covering) co_return absl::OkStatus();
  ++open->flushes_begun;
  FlushVerdict verdict(volume);
  absl::Status status = co_await open->file.Datasync();
  if (status.ok()) verdict.Succeed();
  co_return status;
}

// --- Looking up ----------------------------------------------------------------------------------

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
  // Another call may have opened the volume meanwhile. Its file is in use and stays.
  const auto added = shard->volumes.try_emplace(name, nullptr);
  if (added.second) added.first->second.reset(new OpenVolume(*volume, std::move(file)));
  co_return added.first->second.get();
}

}  // namespace block_store
