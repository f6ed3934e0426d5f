// StatusOfRocks: a status of RocksDB as an absl::Status that names the database.
//
// A pure function; any thread.

#ifndef VERBENA_EXAMPLES_KV_ROCKS_STATUS_H_
#define VERBENA_EXAMPLES_KV_ROCKS_STATUS_H_

#include <string_view>

#include "absl/status/status.h"
#include "rocksdb/status.h"

namespace kv {

// "put of 3 keys: RocksDB in /var/kv: IO error: No space left on device: …; make room …", if `what`
// is "put of 3 keys" and `directory` /var/kv.
//   DATA_LOSS: files are damaged or missing. RESOURCE_EXHAUSTED: the disk is full.
//   FAILED_PRECONDITION: another process has the database open.
//   UNAVAILABLE: it may work later. INTERNAL: anything else.
absl::Status StatusOfRocks(const rocksdb::Status& status, std::string_view what,
                           std::string_view directory);

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_ROCKS_STATUS_H_
