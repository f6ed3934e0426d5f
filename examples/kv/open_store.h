// OpenStore: the store that a command line asks for.
//
// Blocks, so it is called before there are calls.

#ifndef VERBENA_EXAMPLES_KV_OPEN_STORE_H_
#define VERBENA_EXAMPLES_KV_OPEN_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "examples/kv/store.h"

namespace kv {

struct StoreChoice {
  std::string engine = "memory";           // or "rocksdb"
  std::string directory;                   // of RocksDB
  bool durable = true;                     // RocksDB syncs each batch
  uint64_t max_bytes = uint64_t{1} << 30;  // of memory
};

// INVALID_ARGUMENT if there is no such engine, if `directory` is missing for RocksDB, or if it is
// given for memory. Otherwise as RocksStore::Open().
absl::StatusOr<std::unique_ptr<Store>> OpenStore(const StoreChoice& choice);

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_OPEN_STORE_H_
