#include "examples/kv/rocks_store.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "examples/kv/limits.h"
#include "examples/kv/log_check.h"
#include "examples/kv/rocks_status.h"
#include "fmt/format.h"
#include "rocksdb/cache.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/filter_policy.h"
#include "rocksdb/iterator.h"
#include "rocksdb/listener.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/table.h"
#include "rocksdb/version.h"
#include "rocksdb/wal_filter.h"
#include "rocksdb/write_batch.h"
#include "verbena/rpc/status.h"

namespace kv {

using verbena::RunBlocking;
using verbena::Task;

namespace {

constexpr char kRecordsFamily[] = "dedupe";
// For its log of events, in two files.
constexpr size_t kLogBytes = size_t{1} << 20;
constexpr size_t kManifestBytes = size_t{64} << 10;
constexpr double kFilterBitsPerKey = 10;

rocksdb::Slice SliceOf(std::string_view text) { return {text.data(), text.size()}; }

rocksdb::Env& EnvOf(const RocksOptions& options) {
  return options.env != nullptr ? *options.env : *rocksdb::Env::Default();
}

// Leaves the recovery from errors to the next batch, which knows when to try (GoOn). RocksDB itself
// would look for room each 5 s, and be busy meanwhile.
class ManualRecovery final : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
};

rocksdb::DBOptions DatabaseOptions(const RocksOptions& options, rocksdb::WalFilter& replay) {
  rocksdb::DBOptions database;
  database.env = &EnvOf(options);
  // Replays the log up to a torn tail: CheckLog() has found that nothing synced lies behind it.
  database.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  database.wal_filter = &replay;
  // Refuses a store that lacks a file of its log, or has only a part of it, if that file was synced
  // and RocksDB has gone on to the next.
  database.track_and_verify_wals_in_manifest = true;
  database.create_if_missing = true;
  database.create_missing_column_families = true;
  // Readers are executors: what RocksDB has to tidy up, its own threads do.
  database.avoid_unnecessary_blocking_io = true;
  database.max_log_file_size = kLogBytes;
  database.keep_log_file_num = 2;
  database.listeners = {std::make_shared<ManualRecovery>()};
  database.stats_dump_period_sec = 0;
  database.stats_persist_period_sec = 0;
  // Space that is set aside for a list of files that is short here.
  database.manifest_preallocation_size = kManifestBytes;
  return database;
}

rocksdb::ColumnFamilyOptions FamilyOptions(const RocksOptions& options,
                                           const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  // A Put looks whether its key is there: the filter tells without the disk that a new key is not.
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(kFilterBitsPerKey));
  rocksdb::ColumnFamilyOptions family;
  family.write_buffer_size = options.write_buffer_bytes;
  family.max_write_buffer_number = 2;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return family;
}

// Refuses a directory in which RocksDB would make a new database beside the files of somebody else,
// or of a store that has lost its CURRENT, which RocksDB would then remove.
absl::Status CheckDirectory(const RocksOptions& options) {
  if (options.directory.empty()) {
    return absl::InvalidArgumentError("RocksDB needs a directory; none is named");
  }
  rocksdb::Env& env = EnvOf(options);
  std::vector<std::string> names;
  const rocksdb::Status listed = env.GetChildren(options.directory, &names);
  if (listed.IsNotFound()) return absl::OkStatus();
  VERBENA_RETURN_IF_ERROR(StatusOfRocks(listed, "open", options.directory));
  bool has_files = false;
  bool is_database = false;
  bool has_entries = false;
  for (const std::string& name : names) {
    if (name == "CURRENT") return absl::OkStatus();
    // A database that is being made, when a crash comes, has these and a manifest first.
    is_database = is_database || name == "LOCK" || name == "IDENTITY";
    has_entries = has_entries || name.ends_with(".sst") || name.ends_with(".log");
    has_files = has_files || (name != "." && name != ".." && name != "lost+found");
  }
  if (is_database && has_entries) {
    return absl::DataLossError(
        fmt::format("open: RocksDB in {}: its file CURRENT is missing, without which RocksDB makes "
                    "a new store and removes the files of this one; restore the directory from a "
                    "backup",
                    options.directory));
  }
  if (is_database || !has_files) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} has files, but no RocksDB; name an empty directory, or one of a store",
                  options.directory));
}

std::string ParentOf(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory + "/").lexically_normal();
  const std::string parent = path.parent_path().parent_path();
  return parent.empty() ? "." : parent;
}

// Makes the directory. Its name is on the disk before its first file is: RocksDB syncs the names in
// the directory alone.
absl::Status MakeDirectory(const RocksOptions& options) {
  rocksdb::Env& env = EnvOf(options);
  if (env.FileExists(options.directory + "/CURRENT").ok()) return absl::OkStatus();
  std::unique_ptr<rocksdb::Directory> parent;
  rocksdb::Status status = env.CreateDirIfMissing(options.directory);
  if (status.IsPathNotFound()) {
    return absl::NotFoundError(
        fmt::format("open: RocksDB in {}: {}; make the directory that it lies in",
                    options.directory, status.ToString()));
  }
  if (status.ok()) status = env.NewDirectory(ParentOf(options.directory), &parent);
  if (status.ok()) status = parent->Fsync();
  return StatusOfRocks(status, "open", options.directory);
}

// `failed`, after which nothing is stored, now or later.
absl::Status NotStored(absl::Status failed) {
  return verbena::WithOutcome(std::move(failed), verbena::Outcome::kNotExecuted);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RocksStore>> RocksStore::Open(RocksOptions options) {
  VERBENA_RETURN_IF_ERROR(CheckDirectory(options));
  VERBENA_RETURN_IF_ERROR(MakeDirectory(options));
  std::unique_ptr<RocksStore> store(new RocksStore(std::move(options)));
  VERBENA_RETURN_IF_ERROR(
      CheckLog(EnvOf(store->options_), store->options_.directory, kRecordsFamily));
  VERBENA_RETURN_IF_ERROR(store->OpenDatabase());
  try {
    store->commits_.emplace(static_cast<BatchEngine&>(*store));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(fmt::format("a thread for commits: {}", error.what()));
  }
  return store;
}

RocksStore::RocksStore(RocksOptions options)
    : options_(std::move(options)), replay_(MakeReplayFilter()) {}

absl::Status RocksStore::OpenDatabase() {
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(options_.cache_bytes);
  const rocksdb::ColumnFamilyOptions family = FamilyOptions(options_, cache);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* database = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(
      DatabaseOptions(options_, *replay_), options_.directory,
      {{rocksdb::kDefaultColumnFamilyName, family}, {kRecordsFamily, family}}, &handles, &database);
  VERBENA_RETURN_IF_ERROR(Failed(opened, "open"));
  db_.reset(database);
  data_ = handles[0];
  records_ = handles[1];
  // RocksDB has written all that it has replayed to files of entries.
  VERBENA_ASSIGN_OR_RETURN(synced_, SyncedMark::Make(EnvOf(options_), options_.directory,
                                                     {.last_entry = db_->GetLatestSequenceNumber(),
                                                      .each_batch = options_.durable}));
  return absl::OkStatus();
}

RocksStore::~RocksStore() {
  commits_.reset();
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* family : {data_, records_}) {
    db_->DestroyColumnFamilyHandle(family).PermitUncheckedError();
  }
  db_->Close().PermitUncheckedError();
}

std::string RocksStore::description() const {
  return fmt::format("RocksDB {} in {}, {}", rocksdb::GetRocksVersionAsString(), options_.directory,
                     options_.durable ? "writes synced before they are acknowledged"
                                      : "writes not synced: a power cut may lose the latest");
}

// --- Writes --------------------------------------------------------------------------------------

Task<absl::StatusOr<bool>> RocksStore::Write(StoreWrite write) {
  VERBENA_CO_RETURN_IF_ERROR(CheckLengths(write));
  VERBENA_CO_ASSIGN_OR_RETURN(const bool existed, co_await commits_->Commit(write));
  ++(write.value.has_value() ? counts_.puts : counts_.deletes);
  co_return existed;
}

absl::Status RocksStore::StoreBatch(absl::Span<PendingWrite* const> batch) {
  if (ended_) {
    return NotStored(absl::FailedPreconditionError(fmt::format(
        "RocksDB in {} takes no more writes, since one before failed: open the store anew",
        options_.directory)));
  }
  absl::Status stored = StoreAll(batch);
  ended_ = options_.ends_at_failure && !stored.ok();
  return stored;
}

absl::Status RocksStore::StoreAll(absl::Span<PendingWrite* const> batch) {
  rocksdb::WriteBatch changes;
  BatchKeys keys;
  for (PendingWrite* pending : batch) {
    const StoreWrite& write = *pending->write;
    const absl::StatusOr<bool> existed =
        write.asks_existed ? HasValue(write.key, keys) : absl::StatusOr<bool>(true);
    if (existed.ok()) {
      pending->existed = *existed;
      VERBENA_RETURN_IF_ERROR(NotStored(AddToBatch(*pending, keys, changes)));
      continue;
    }
    // The others may be writes of other clients, to files that are whole.
    pending->status = NotStored(existed.status());
    if (options_.ends_at_failure) return pending->status;
  }
  if (changes.Count() > 0) VERBENA_RETURN_IF_ERROR(WriteDown(changes, batch.size()));
  for (const PendingWrite* pending : batch) {
    if (!pending->status.ok()) continue;
    const StoreWrite& write = *pending->write;
    if (write.value.has_value() || pending->existed) changes_.Add(write.key, write.value);
  }
  return absl::OkStatus();
}

absl::Status RocksStore::AddToBatch(const PendingWrite& pending, BatchKeys& keys,
                                    rocksdb::WriteBatch& changes) {
  const StoreWrite& write = *pending.write;
  keys[write.key] = write.value.has_value();
  rocksdb::Status added;
  if (write.value.has_value()) {
    added = changes.Put(data_, SliceOf(write.key), SliceOf(*write.value));
  } else if (pending.existed) {
    added = changes.Delete(data_, SliceOf(write.key));
  }
  for (const StoreRecord& record : write.records) {
    if (!added.ok()) break;
    const std::optional<std::string_view> bytes = record.bytes_for(pending.existed);
    added = bytes.has_value() ? changes.Put(records_, SliceOf(record.id), SliceOf(*bytes))
                              : changes.Delete(records_, SliceOf(record.id));
  }
  return Failed(added, "write");
}

absl::StatusOr<bool> RocksStore::HasValue(std::string_view key, const BatchKeys& keys) {
  const auto written = keys.find(key);
  if (written != keys.end()) return written->second;
  rocksdb::PinnableSlice value;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), data_, SliceOf(key), &value);
  if (found.IsNotFound()) return false;
  VERBENA_RETURN_IF_ERROR(Failed(found, "look-up of a key"));
  return true;
}

absl::Status RocksStore::WriteDown(rocksdb::WriteBatch& changes, size_t writes) {
  const std::string what = fmt::format("commit of {} writes", writes);
  if (write_failed_) VERBENA_RETURN_IF_ERROR(NotStored(GoOn(what)));
  rocksdb::WriteOptions options;
  options.sync = options_.durable;
  const rocksdb::Status written = db_->Write(options, &changes);
  write_failed_ = !written.ok();
  // The log may have all of the batch, which is replayed when the store is opened anew.
  VERBENA_RETURN_IF_ERROR(Failed(written, what));
  if (options_.durable) synced_->Advance(db_->GetLatestSequenceNumber());
  return absl::OkStatus();
}

absl::Status RocksStore::GoOn(std::string_view what) {
  // Resume() begins a new log only together with a new memtable, and RocksDB ends the process at
  // the next write to a log that has failed.
  if (Property(data_, rocksdb::DB::Properties::kNumEntriesActiveMemTable) == 0 &&
      Property(records_, rocksdb::DB::Properties::kNumEntriesActiveMemTable) == 0) {
    return absl::FailedPreconditionError(
        fmt::format("{}: RocksDB in {} cannot go on, since the first write to a file of its log "
                    "failed: open the store anew",
                    what, options_.directory));
  }
  // If Resume() fails for want of room, RocksDB refuses writes until it is opened anew. So ask it
  // only when it can store what it has in memory.
  uint64_t free = 0;
  const uint64_t needed = 2 * options_.write_buffer_bytes;
  const rocksdb::Status measured = EnvOf(options_).GetFileSystem()->GetFreeSpace(
      options_.directory, rocksdb::IOOptions(), &free, nullptr);
  VERBENA_RETURN_IF_ERROR(Failed(measured, what));
  if (free < needed) {
    return absl::ResourceExhaustedError(
        fmt::format("{}: RocksDB in {}: a write failed before; to go on it needs {} bytes of free "
                    "space, and there are {}; make room on its file system",
                    what, options_.directory, needed, free));
  }
  return Failed(db_->Resume(), what);
}

// --- Reads ---------------------------------------------------------------------------------------

Task<absl::Status> RocksStore::Find(rocksdb::ColumnFamilyHandle* family, std::string_view key,
                                    std::string& value) {
  rocksdb::PinnableSlice found;
  rocksdb::ReadOptions memory_alone;
  memory_alone.read_tier = rocksdb::kBlockCacheTier;
  rocksdb::Status status = db_->Get(memory_alone, family, SliceOf(key), &found);
  if (status.IsIncomplete()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await RunBlocking([&] {
      found.Reset();
      status = db_->Get(rocksdb::ReadOptions(), family, SliceOf(key), &found);
      return absl::OkStatus();
    }));
  }
  if (status.IsNotFound()) co_return absl::NotFoundError("the key has no value");
  VERBENA_CO_RETURN_IF_ERROR(Failed(status, "look-up of a key"));
  value.assign(found.data(), found.size());
  co_return absl::OkStatus();
}

Task<absl::Status> RocksStore::Get(std::string_view key, std::string& value) {
  absl::Status status = co_await Find(data_, key, value);
  ++counts_.gets;
  if (absl::IsNotFound(status)) ++counts_.misses;
  co_return status;
}

Task<absl::Status> RocksStore::GetRecord(std::string_view id, std::string& bytes) {
  co_return co_await Find(records_, id, bytes);
}

Task<absl::StatusOr<ScanPage>> RocksStore::Scan(std::string_view start_key, size_t max_bytes) {
  ++counts_.scans;
  co_return co_await RunBlocking([&] { return ReadPage(data_, start_key, max_bytes); });
}

Task<absl::StatusOr<ScanPage>> RocksStore::ScanRecords(std::string_view start_id,
                                                       size_t max_bytes) {
  co_return co_await RunBlocking([&] { return ReadPage(records_, start_id, max_bytes); });
}

absl::StatusOr<ScanPage> RocksStore::ReadPage(rocksdb::ColumnFamilyHandle* family,
                                              std::string_view start_key, size_t max_bytes) {
  ScanPage page;
  size_t bytes = 0;
  const std::unique_ptr<rocksdb::Iterator> entry(db_->NewIterator(rocksdb::ReadOptions(), family));
  for (entry->Seek(SliceOf(start_key)); entry->Valid(); entry->Next()) {
    bytes += entry->key().size() + entry->value().size() + kPageEntryBytes;
    if (!page.entries.empty() && bytes > max_bytes) {
      page.next_key = entry->key().ToString();
      break;
    }
    page.entries.push_back({entry->key().ToString(), entry->value().ToString()});
  }
  VERBENA_RETURN_IF_ERROR(Failed(entry->status(), "scan"));
  return page;
}

Task<absl::StatusOr<StoreStats>> RocksStore::Stats() {
  StoreStats stats;
  // They take the lock of the database.
  VERBENA_CO_RETURN_IF_ERROR(co_await RunBlocking([&] {
    stats.keys = Property(data_, rocksdb::DB::Properties::kEstimateNumKeys);
    stats.bytes = Property(data_, rocksdb::DB::Properties::kEstimateLiveDataSize) +
                  Property(data_, rocksdb::DB::Properties::kCurSizeAllMemTables);
    return absl::OkStatus();
  }));
  stats.puts = counts_.puts;
  stats.gets = counts_.gets;
  stats.misses = counts_.misses;
  stats.deletes = counts_.deletes;
  stats.scans = counts_.scans;
  stats.batches = commits_->batches();
  co_return stats;
}

uint64_t RocksStore::Property(rocksdb::ColumnFamilyHandle* family, const std::string& name) const {
  uint64_t value = 0;
  return db_->GetIntProperty(family, name, &value) ? value : 0;
}

absl::Status RocksStore::Failed(const rocksdb::Status& status, std::string_view what) const {
  return StatusOfRocks(status, what, options_.directory);
}

}  // namespace kv
