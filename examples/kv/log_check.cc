#include "examples/kv/log_check.h"

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/kv/rocks_status.h"
#include "examples/kv/synced_mark.h"
#include "fmt/format.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/options.h"
#include "rocksdb/wal_filter.h"
#include "rocksdb/write_batch.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace {

// Entries that a log lacks, though it has later ones.
struct Gap {
  uint64_t first;
  uint64_t last;
};

// The number of a batch's first entry: eight bytes at its start, lowest first.
uint64_t FirstEntryOf(const rocksdb::WriteBatch& batch) {
  uint64_t entry = 0;
  for (int i = 7; i >= 0; --i) entry = entry << 8 | static_cast<uint8_t>(batch.Data()[i]);
  return entry;
}

// Follows the numbers of the entries in a log up to the first gap.
class EntryOrder final : public rocksdb::WalFilter {
 public:
  explicit EntryOrder(bool replays) : replays_(replays) {}

  const char* Name() const override { return "kv.EntryOrder"; }
  WalProcessingOption LogRecordFound(unsigned long long /*log*/, const std::string& /*file*/,
                                     const rocksdb::WriteBatch& batch, rocksdb::WriteBatch*,
                                     bool*) override {
    const uint64_t first = FirstEntryOf(batch);
    if (!first_.has_value()) first_ = next_ = first;
    if (first > next_ && !gap_.has_value()) gap_ = {.first = next_, .last = first - 1};
    if (!gap_.has_value()) next_ = first + batch.Count();
    if (!replays_) return WalProcessingOption::kIgnoreCurrentRecord;
    return gap_.has_value() ? WalProcessingOption::kStopReplay
                            : WalProcessingOption::kContinueProcessing;
  }

  // The last entry of the store, whose files have those up to `in_files`.
  uint64_t LastEntry(uint64_t in_files) const {
    if (!first_.has_value() || *first_ > in_files + 1) return in_files;
    return std::max(in_files, next_ - 1);
  }
  std::optional<Gap> FindGap(uint64_t in_files) const {
    if (first_.has_value() && *first_ > in_files + 1) return Gap{in_files + 1, *first_ - 1};
    return gap_;
  }

 private:
  const bool replays_;
  std::optional<uint64_t> first_;
  uint64_t next_ = 0;
  std::optional<Gap> gap_;
};

// RocksDB's messages about the check would replace the LOG of the last run.
class NoLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Files that note what the disk did not read. RocksDB takes that for damage, and says nothing.
class NotingFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit NotingFiles(const std::shared_ptr<rocksdb::FileSystem>& files)
      : rocksdb::FileSystemWrapper(files) {}

  const char* Name() const override { return "kv.NotingFiles"; }
  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* context) override {
    rocksdb::IOStatus opened = FileSystemWrapper::NewSequentialFile(name, options, result, context);
    if (opened.ok()) *result = std::make_unique<File>(failure_, std::move(*result));
    return opened;
  }
  const rocksdb::Status& failure() const { return failure_; }

 private:
  class File final : public rocksdb::FSSequentialFileOwnerWrapper {
   public:
    File(rocksdb::Status& failure, std::unique_ptr<rocksdb::FSSequentialFile> target)
        : FSSequentialFileOwnerWrapper(std::move(target)), failure_(failure) {}

    rocksdb::IOStatus Read(size_t bytes, const rocksdb::IOOptions& options, rocksdb::Slice* result,
                           char* scratch, rocksdb::IODebugContext* context) override {
      rocksdb::IOStatus read =
          FSSequentialFileOwnerWrapper::Read(bytes, options, result, scratch, context);
      if (!read.ok()) failure_ = read;
      return read;
    }

   private:
    rocksdb::Status& failure_;
  };

  rocksdb::Status failure_;  // the last one
};

class Lock {
 public:
  Lock(rocksdb::Env& env, const std::string& directory)
      : env_(env), status_(env.LockFile(directory + "/LOCK", &lock_)) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (status_.ok()) env_.UnlockFile(lock_).PermitUncheckedError();
  }
  const rocksdb::Status& status() const { return status_; }

 private:
  rocksdb::Env& env_;
  rocksdb::FileLock* lock_ = nullptr;
  const rocksdb::Status status_;
};

absl::Status Lost(const std::string& directory, std::string_view what) {
  return absl::DataLossError(
      fmt::format("open: RocksDB in {}: {}; restore the directory from a backup, or remove SYNCED "
                  "in it to open the store without what is lost and all that came after",
                  directory, what));
}

// Reads the log with `order`. Returns the last entry that is in files of the database.
absl::StatusOr<uint64_t> ReadLog(rocksdb::Env& env, const std::string& directory,
                                 const std::string& family, EntryOrder& order) {
  const auto files = std::make_shared<NotingFiles>(env.GetFileSystem());
  const std::unique_ptr<rocksdb::Env> noting = rocksdb::NewCompositeEnv(files);
  rocksdb::DBOptions options;
  options.env = noting.get();
  options.info_log = std::make_shared<NoLogger>();
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
  options.wal_filter = &order;
  options.track_and_verify_wals_in_manifest = true;
  // The data are not read.
  options.max_open_files = 20;
  options.skip_stats_update_on_db_open = true;
  std::vector<std::string> names;
  VERBENA_RETURN_IF_ERROR(StatusOfRocks(rocksdb::DB::ListColumnFamilies(options, directory, &names),
                                        "open", directory));
  if (std::find(names.begin(), names.end(), family) == names.end()) {
    return Lost(directory, fmt::format("its list of files lacks the column family {}", family));
  }
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  families.reserve(names.size());
  for (const std::string& name : names) {
    families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  VERBENA_RETURN_IF_ERROR(
      StatusOfRocks(rocksdb::DB::OpenForReadOnly(options, directory, families, &handles, &opened),
                    "open", directory));
  const std::unique_ptr<rocksdb::DB> database(opened);
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    database->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }
  VERBENA_RETURN_IF_ERROR(StatusOfRocks(files->failure(), "open: reading the log", directory));
  return database->GetLatestSequenceNumber();
}

}  // namespace

absl::Status CheckLog(rocksdb::Env& env, const std::string& directory, const std::string& family) {
  VERBENA_ASSIGN_OR_RETURN(const bool marked, SyncedMark::Exists(env, directory));
  if (!marked) return absl::OkStatus();
  const Lock lock(env, directory);
  VERBENA_RETURN_IF_ERROR(StatusOfRocks(lock.status(), "open", directory));
  VERBENA_ASSIGN_OR_RETURN(const SyncedMark::State synced, SyncedMark::Read(env, directory));
  const rocksdb::Status current = env.FileExists(directory + "/CURRENT");
  if (current.IsNotFound()) {
    return Lost(directory, "its file CURRENT is missing, without which RocksDB makes a new store");
  }
  VERBENA_RETURN_IF_ERROR(StatusOfRocks(current, "open", directory));
  EntryOrder order(/*replays=*/false);
  VERBENA_ASSIGN_OR_RETURN(const uint64_t in_files, ReadLog(env, directory, family, order));
  const std::optional<Gap> gap = order.FindGap(in_files);
  if (synced.each_batch && gap.has_value()) {
    return Lost(directory, fmt::format("its log is damaged: entries {} to {} are missing, which "
                                       "were synced before those behind them",
                                       gap->first, gap->last));
  }
  const uint64_t last = order.LastEntry(in_files);
  if (last < synced.last_entry) {
    return Lost(directory,
                fmt::format("its log is damaged or cut short: it ends with entry {}, but {} were "
                            "synced",
                            last, synced.last_entry));
  }
  return absl::OkStatus();
}

std::unique_ptr<rocksdb::WalFilter> MakeReplayFilter() {
  return std::make_unique<EntryOrder>(/*replays=*/true);
}

}  // namespace kv
