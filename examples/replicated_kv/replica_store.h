// ReplicaStore: what a replica has on its disk: the data, the names of calls, and the position in
// the log up to which both go.
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

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/store.h"
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
    std::optional<std::string> forgotten_id;
    std::optional<std::string> position;  // none while a copy is not complete
  };
  // How far a copy was read.
  struct Cursor {
    std::string next;
    bool at_names = false;
    bool at_end = false;
  };

  explicit ReplicaStore(std::unique_ptr<kv::Store> store) : store_(std::move(store)) {}

  // Reads names and position. Call it before anything else.
  verbena::Task<absl::Status> Load();
  // The position that was loaded or written last. None if the data are not complete.
  const std::optional<LogPosition>& position() const { return position_; }
  const Names& names() const { return names_; }

  Batch Prepare(std::shared_ptr<const v1::Entry> entry, bool complete);
  // Batches are written in the order in which these Tasks start.
  verbena::Task<absl::Status> Write(Batch batch);
  verbena::Task<absl::StatusOr<std::optional<std::string>>> Get(std::string key);

  // For copies. Clear() removes first the position, and then all the rest. Nothing else may write
  // meanwhile.
  verbena::Task<absl::Status> Clear();
  verbena::Task<absl::Status> AddPage(const v1::Page& page);
  verbena::Task<absl::Status> WritePosition(LogPosition position);
  // The next page. Entries that are written meanwhile may be in it or not.
  verbena::Task<absl::StatusOr<v1::Page>> ReadPage(Cursor& cursor);

 private:
  verbena::Task<absl::Status> WriteRecord(std::string id, std::optional<std::string> bytes);

  const std::unique_ptr<kv::Store> store_;
  Names names_;
  std::optional<LogPosition> position_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_STORE_H_
