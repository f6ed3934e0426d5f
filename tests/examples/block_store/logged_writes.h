// LoggedWrites: what dm-log-writes noted of a disk, entry by entry, and its replay into an image.
//
// The kernel appends a write to the log only once a flush that came after it has completed, or at
// once if the write bypassed the disk's cache (FUA). So the log up to any entry is what a disk
// holds that has lost its volatile cache at that moment. Marks are entries of the test's own.
//
// Format: Documentation/admin-guide/device-mapper/log-writes.rst, and drivers/md/dm-log-writes.c.

#ifndef VERBENA_TESTS_EXAMPLES_BLOCK_STORE_LOGGED_WRITES_H_
#define VERBENA_TESTS_EXAMPLES_BLOCK_STORE_LOGGED_WRITES_H_

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace block_store {

class LoggedWrites {
 public:
  struct Entry {
    uint64_t at = 0;     // of the image, in bytes
    uint64_t bytes = 0;  // that the entry changes
    bool flush = false;
    bool fua = false;
    bool discard = false;
    std::string mark{};        // the mark's text; empty for other entries
    uint64_t data_in_log = 0;  // where the new bytes lie in the log

    // Whether the disk promised at this entry that what came before is durable.
    bool is_flush_point() const { return flush || fua || !mark.empty(); }
  };

  // Reads the entries of the log that lies on `path`, a block device or a file.
  static absl::StatusOr<LoggedWrites> Open(const std::string& path);

  const std::vector<Entry>& entries() const { return entries_; }
  // Carries out the entry on `image`. DATA_LOSS if the log ends early or leaves the image.
  absl::Status Apply(const Entry& entry, std::vector<char>& image);

 private:
  explicit LoggedWrites(std::ifstream log) : log_(std::move(log)) {}
  absl::Status ReadEntries();

  std::ifstream log_;
  std::vector<Entry> entries_;
};

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_LOGGED_WRITES_H_
