// SyncedMark: a note beside a store's log of how far that log is synced.
//
// RocksDB numbers the entries of its log, one for each key written or deleted. The file SYNCED has
// the number up to which all entries are on the disk. A log that ends before this number has lost
// synced entries.
//
// Advance() overwrites the file and does not sync it, so it costs no wait for the disk. The mark is
// never ahead of the log. It is exact after a crash of the process and after an orderly end. After
// a power cut it is as old as its last write-back by the kernel: about half a minute at most.
//
// One thread at a time.

#ifndef VERBENA_EXAMPLES_KV_SYNCED_MARK_H_
#define VERBENA_EXAMPLES_KV_SYNCED_MARK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rocksdb {
class Env;
class RandomRWFile;
}  // namespace rocksdb

namespace kv {

class SyncedMark {
 public:
  struct State {
    uint64_t last_entry = 0;  // 0: none
    // Whether the store syncs each batch before the next. If so, only the last batch of the log may
    // be incomplete.
    bool each_batch = false;

    bool operator==(const State&) const = default;
  };

  // Whether the directory has a mark. Errors are those of the file system, such as a failing disk.
  static absl::StatusOr<bool> Exists(rocksdb::Env& env, const std::string& directory);
  // DATA_LOSS if the file is damaged.
  static absl::StatusOr<State> Read(rocksdb::Env& env, const std::string& directory);
  // Makes or replaces the mark of `directory`, synced. `env` must outlive it.
  static absl::StatusOr<std::unique_ptr<SyncedMark>> Make(rocksdb::Env& env,
                                                          const std::string& directory,
                                                          State state);
  SyncedMark(const SyncedMark&) = delete;
  SyncedMark& operator=(const SyncedMark&) = delete;
  // Syncs the mark.
  ~SyncedMark();

  // All entries up to `last_entry` are synced. If the mark cannot be written, it stays as it was,
  // which is still true.
  void Advance(uint64_t last_entry);

 private:
  SyncedMark(std::unique_ptr<rocksdb::RandomRWFile> file, State state);

  const std::unique_ptr<rocksdb::RandomRWFile> file_;
  State state_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_SYNCED_MARK_H_
