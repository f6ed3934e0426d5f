// ReplicaStore: a replica's disk: the data, the names of calls, and the position in the log up to
// which both go.
//
// A kv::Store keeps them: data under "=" and the key, the rest as records of its family `dedupe`.
// One batch holds an entry's data, its name and its position, so that after a crash the disk has a
// prefix of the log; so the kv::Store must store no write after one that failed
// (RocksOptions::ends_at_failure). Without a position, the data are incomplete and must not be
// served. All on one executor.
//
//   ReplicaStore::Batch batch = store.Prepare(entry, /*complete=*/true);   // names know it now
//   absl::Status written = co_await store.Write(std::move(batch));         // the disk has it now

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_STORE_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_STORE_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/store.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/names.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/shard_state.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

inline v1::Position MessageOf(LogPosition position) {
  v1::Position message;
  message.set_sequence(position.sequence);
  message.set_epoch(position.epoch);
  return message;
}
// The position in a v1::Position, or of a v1::Entry.
template <typename Message>
LogPosition PositionOf(const Message& message) {
  return {.epoch = message.epoch(), .sequence = message.sequence()};
}

class ReplicaStore {
 public:
  // An entry on its way to the disk.
  struct Batch {
    std::shared_ptr<const v1::Entry> entry;
    std::string key;
    std::string names_id;
    std::string names;
    std::optional<std::string> forgotten_id;  // of a client that makes room
    std::optional<std::string> position;      // none while a copy is not complete
  };
  // How far a copy was read. The names come first.
  struct Cursor {
    std::string next;
    bool at_data = false;
    bool at_end = false;
  };

  explicit ReplicaStore(std::unique_ptr<kv::Store> store) : store_(std::move(store)) {}

  // Reads names and position. Call it before anything else.
  verbena::Task<absl::Status> Load() {
    names_.Clear();
    position_.reset();
    std::string bytes;
    absl::Status found = co_await store_->GetRecord(kPositionId, bytes);
    if (absl::IsNotFound(found)) co_return absl::OkStatus();
    VERBENA_CO_RETURN_IF_ERROR(found);
    v1::Position position;
    if (!position.ParseFromString(bytes)) {
      co_return absl::DataLossError("the record of the replica's position does not parse");
    }
    std::string next;
    do {
      VERBENA_CO_ASSIGN_OR_RETURN(kv::ScanPage page,
                                  co_await store_->ScanRecords(next, kMaxPageBytes));
      for (const kv::StoreEntry& record : page.entries) {
        if (record.key.front() != kNames) continue;
        VERBENA_CO_RETURN_IF_ERROR(
            names_.Load(std::string_view(record.key).substr(1), record.value));
      }
      next = std::move(page.next_key);
    } while (!next.empty());
    position_ = PositionOf(position);
    co_return absl::OkStatus();
  }
  // Why the disk has failed, if it has: the first write that it did not take, or the first read of
  // what a copy was to erase. The disk holds a prefix of what it was given, and takes no more.
  const absl::Status& failure() const { return failure_; }
  // As it was loaded or written last: none if the data are not complete.
  const std::optional<LogPosition>& position() const { return position_; }
  const Names& names() const { return names_; }

  Batch Prepare(std::shared_ptr<const v1::Entry> entry, bool complete) {
    Batch batch;
    batch.key = Prefixed(kData, entry->key());
    if (const std::optional<std::string> forgotten = names_.Add(*entry)) {
      batch.forgotten_id = Prefixed(kNames, *forgotten);
    }
    batch.names_id = Prefixed(kNames, entry->client());
    batch.names = names_.RecordOf(entry->client());
    if (complete) {
      position_ = PositionOf(*entry);
      batch.position = MessageOf(*position_).SerializeAsString();
    }
    batch.entry = std::move(entry);
    return batch;
  }
  // Batches are written in the order in which these Tasks start.
  verbena::Task<absl::Status> Write(Batch batch) {
    std::vector<kv::StoreRecord> records = {{.id = batch.names_id, .bytes = batch.names}};
    if (batch.forgotten_id.has_value()) records.push_back({.id = *batch.forgotten_id});
    if (batch.position.has_value())
      records.push_back({.id = kPositionId, .bytes = *batch.position});
    co_return co_await Store({.key = batch.key, .value = batch.entry->value(), .records = records});
  }
  verbena::Task<absl::StatusOr<std::optional<std::string>>> Get(std::string key) {
    const std::string stored = Prefixed(kData, key);
    std::string value;
    absl::Status found = co_await store_->Get(stored, value);
    if (absl::IsNotFound(found)) co_return std::nullopt;
    VERBENA_CO_RETURN_IF_ERROR(found);
    co_return std::optional<std::string>(std::move(value));
  }

  // For copies. Clear() removes first the position, and then all the rest. Nothing else may write
  // meanwhile.
  verbena::Task<absl::Status> Clear() {
    position_.reset();
    names_.BeginCopy();
    VERBENA_CO_RETURN_IF_ERROR(co_await WriteRecord(std::string(kPositionId), std::nullopt));
    for (const bool records : {false, true}) {
      for (;;) {
        absl::StatusOr<kv::ScanPage> page = records
                                                ? co_await store_->ScanRecords("", kMaxPageBytes)
                                                : co_await store_->Scan("", kMaxPageBytes);
        // What cannot be read cannot be erased: the next copy would fail, too.
        VERBENA_CO_RETURN_IF_ERROR(Noted(page.status()));
        if (page->entries.empty()) break;
        const auto remove = [this,
                             records](const kv::StoreEntry& entry) -> verbena::Task<absl::Status> {
          if (records) co_return co_await WriteRecord(entry.key, std::nullopt);
          co_return co_await Store({.key = entry.key});
        };
        VERBENA_CO_RETURN_IF_ERROR(
            co_await verbena::ForEach(std::move(page->entries), kWritesAtOnce, remove));
      }
    }
    co_return absl::OkStatus();
  }
  // INVALID_ARGUMENT: the page is none that ReadPage() gives.
  verbena::Task<absl::Status> AddPage(const v1::Page& page) {
    for (const v1::Page::Pair& pair : page.entries()) {
      VERBENA_CO_RETURN_IF_ERROR(CheckLengths(pair.key(), pair.value()));
    }
    if (page.clients_forgotten()) names_.NoteForgotten();
    for (const v1::Page::Pair& pair : page.names()) {
      VERBENA_CO_RETURN_IF_ERROR(CheckLengths(pair.key(), pair.value()));
      VERBENA_CO_RETURN_IF_ERROR(names_.Load(pair.key(), pair.value()));
      VERBENA_CO_RETURN_IF_ERROR(co_await WriteRecord(Prefixed(kNames, pair.key()), pair.value()));
    }
    names_.NoteCopied(page.names().empty() ? "" : page.names().rbegin()->key());
    std::vector<v1::Page::Pair> pairs(page.entries().begin(), page.entries().end());
    co_return co_await verbena::ForEach(
        std::move(pairs), kWritesAtOnce,
        [this](const v1::Page::Pair& pair) -> verbena::Task<absl::Status> {
          const std::string key = Prefixed(kData, pair.key());
          co_return co_await Store({.key = key, .value = pair.value()});
        });
  }
  verbena::Task<absl::Status> WritePosition(LogPosition position) {
    position_ = position;
    co_return co_await WriteRecord(std::string(kPositionId),
                                   MessageOf(position).SerializeAsString());
  }
  // The next page. Entries that are written meanwhile may be in it or not.
  verbena::Task<absl::StatusOr<v1::Page>> ReadPage(Cursor& cursor) {
    v1::Page page;
    const bool data = cursor.at_data;
    VERBENA_CO_ASSIGN_OR_RETURN(kv::ScanPage read,
                                data ? co_await store_->Scan(cursor.next, kMaxPageBytes)
                                     : co_await store_->ScanRecords(cursor.next, kMaxPageBytes));
    for (kv::StoreEntry& entry : read.entries) {
      if (entry.key.front() != (data ? kData : kNames)) continue;
      v1::Page::Pair& pair = *(data ? page.add_entries() : page.add_names());
      pair.set_key(entry.key.substr(1));
      pair.set_value(std::move(entry.value));
    }
    // After the read, which may lack a client that was forgotten meanwhile.
    page.set_clients_forgotten(names_.has_forgotten());
    cursor.next = std::move(read.next_key);
    if (cursor.next.empty()) {
      cursor.at_end = data;
      cursor.at_data = true;
    }
    co_return page;
  }

 private:
  static constexpr char kData = '=';
  static constexpr char kNames = 'n';
  static constexpr std::string_view kPositionId = "p";
  // A key that no data have: for batches of records alone.
  static constexpr std::string_view kNoKey = "-";
  static constexpr size_t kWritesAtOnce = 256;

  static std::string Prefixed(char prefix, std::string_view rest) {
    return std::string(1, prefix).append(rest);
  }
  verbena::Task<absl::Status> WriteRecord(std::string id, std::optional<std::string> bytes) {
    kv::StoreRecord record{.id = id};
    if (bytes.has_value()) record.bytes = *bytes;
    co_return co_await Store({.key = kNoKey, .records = absl::MakeConstSpan(&record, 1)});
  }
  // No write of a replica needs the value before, and a damaged file must not end the log.
  verbena::Task<absl::Status> Store(kv::StoreWrite write) {
    write.asks_existed = false;
    co_return Noted((co_await store_->Write(write)).status());
  }
  // Notes what the disk has said. A Task that is cut off says nothing of the disk.
  absl::Status Noted(absl::Status said) {
    const bool is_cut_off = absl::IsCancelled(said) || absl::IsDeadlineExceeded(said);
    if (failure_.ok() && !is_cut_off) failure_ = said;
    return said;
  }

  const std::unique_ptr<kv::Store> store_;
  Names names_;
  std::optional<LogPosition> position_;
  absl::Status failure_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_STORE_H_
