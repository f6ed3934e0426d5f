#include "examples/kv/open_store.h"

#include "absl/status/status.h"
#include "examples/kv/memory_store.h"
#include "examples/kv/rocks_store.h"
#include "fmt/format.h"

namespace kv {

absl::StatusOr<std::unique_ptr<Store>> OpenStore(const StoreChoice& choice) {
  if (choice.engine == "rocksdb") {
    if (choice.directory.empty()) {
      return absl::InvalidArgumentError("--store=rocksdb needs --directory=DIR for its data");
    }
    return RocksStore::Open({.directory = choice.directory, .durable = choice.durable});
  }
  if (choice.engine != "memory") {
    return absl::InvalidArgumentError(
        fmt::format("--store is '{}', but must be memory or rocksdb", choice.engine));
  }
  if (!choice.directory.empty()) {
    return absl::InvalidArgumentError("--directory is for --store=rocksdb; memory has none");
  }
  return std::make_unique<MemoryStore>(choice.max_bytes);
}

}  // namespace kv
