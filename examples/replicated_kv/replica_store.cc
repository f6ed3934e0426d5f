#include "examples/replicated_kv/replica_store.h"

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "examples/replicated_kv/limits.h"
#include "verbena/transport/log/mutant.h"

namespace replicated_kv {

using verbena::Task;

namespace {

constexpr char kData = '=';
constexpr char kNames = 'n';
constexpr std::string_view kPositionId = "p";
// A key that no data have: for batches of records alone.
constexpr std::string_view kNoKey = "-";
constexpr size_t kWritesAtOnce = 256;

std::string Prefixed(char prefix, std::string_view rest) {
  return std::string(1, prefix).append(rest);
}

}  // namespace

Task<absl::Status> ReplicaStore::Load() {
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
      VERBENA_CO_RETURN_IF_ERROR(names_.Load(std::string_view(record.key).substr(1), record.value));
    }
    next = std::move(page.next_key);
  } while (!next.empty());
  position_ = PositionOf(position);
  co_return absl::OkStatus();
}

ReplicaStore::Batch ReplicaStore::Prepare(std::shared_ptr<const v1::Entry> entry, bool complete) {
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

Task<absl::Status> ReplicaStore::Write(Batch batch) {
  std::vector<kv::StoreRecord> records = {{.id = batch.names_id, .bytes = batch.names}};
  if (VERBENA_MUTANT(kNameNotWithData)) records.clear();
  if (batch.forgotten_id.has_value()) records.push_back({.id = *batch.forgotten_id});
  if (batch.position.has_value()) records.push_back({.id = kPositionId, .bytes = *batch.position});
  co_return (
      co_await store_->Write({.key = batch.key, .value = batch.entry->value(), .records = records}))
      .status();
}

Task<absl::StatusOr<std::optional<std::string>>> ReplicaStore::Get(std::string key) {
  const std::string stored = Prefixed(kData, key);
  std::string value;
  absl::Status found = co_await store_->Get(stored, value);
  if (absl::IsNotFound(found)) co_return std::nullopt;
  VERBENA_CO_RETURN_IF_ERROR(found);
  co_return std::optional<std::string>(std::move(value));
}

Task<absl::Status> ReplicaStore::Clear() {
  position_.reset();
  names_.Clear();
  VERBENA_CO_RETURN_IF_ERROR(co_await WriteRecord(std::string(kPositionId), std::nullopt));
  for (const bool records : {false, true}) {
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(kv::ScanPage page,
                                  records ? co_await store_->ScanRecords("", kMaxPageBytes)
                                          : co_await store_->Scan("", kMaxPageBytes));
      if (page.entries.empty()) break;
      const auto remove = [this, records](const kv::StoreEntry& entry) -> Task<absl::Status> {
        if (records) co_return co_await WriteRecord(entry.key, std::nullopt);
        co_return (co_await store_->Write({.key = entry.key})).status();
      };
      VERBENA_CO_RETURN_IF_ERROR(
          co_await verbena::ForEach(std::move(page.entries), kWritesAtOnce, remove));
    }
  }
  co_return absl::OkStatus();
}

Task<absl::Status> ReplicaStore::AddPage(const v1::Page& page) {
  for (const v1::Page::Pair& pair : page.names()) {
    VERBENA_CO_RETURN_IF_ERROR(names_.Load(pair.key(), pair.value()));
    VERBENA_CO_RETURN_IF_ERROR(co_await WriteRecord(Prefixed(kNames, pair.key()), pair.value()));
  }
  std::vector<v1::Page::Pair> pairs(page.entries().begin(), page.entries().end());
  co_return co_await verbena::ForEach(
      std::move(pairs), kWritesAtOnce, [this](const v1::Page::Pair& pair) -> Task<absl::Status> {
        const std::string key = Prefixed(kData, pair.key());
        co_return (co_await store_->Write({.key = key, .value = pair.value()})).status();
      });
}

Task<absl::Status> ReplicaStore::WritePosition(LogPosition position) {
  position_ = position;
  co_return co_await WriteRecord(std::string(kPositionId), MessageOf(position).SerializeAsString());
}

Task<absl::StatusOr<v1::Page>> ReplicaStore::ReadPage(Cursor& cursor) {
  v1::Page page;
  const bool names = cursor.at_names;
  VERBENA_CO_ASSIGN_OR_RETURN(kv::ScanPage read,
                              names ? co_await store_->ScanRecords(cursor.next, kMaxPageBytes)
                                    : co_await store_->Scan(cursor.next, kMaxPageBytes));
  for (kv::StoreEntry& entry : read.entries) {
    if (entry.key.front() != (names ? kNames : kData)) continue;
    v1::Page::Pair& pair = *(names ? page.add_names() : page.add_entries());
    pair.set_key(entry.key.substr(1));
    pair.set_value(std::move(entry.value));
  }
  cursor.next = std::move(read.next_key);
  if (cursor.next.empty()) {
    cursor.at_end = names;
    cursor.at_names = true;
  }
  co_return page;
}

Task<absl::Status> ReplicaStore::WriteRecord(std::string id, std::optional<std::string> bytes) {
  kv::StoreRecord record{.id = id};
  if (bytes.has_value()) record.bytes = *bytes;
  co_return (co_await store_->Write({.key = kNoKey, .records = absl::MakeConstSpan(&record, 1)}))
      .status();
}

}  // namespace replicated_kv
