// LoggedWrites: the log that dm-log-writes kept of a disk, and its replay into an image.
//
// The kernel appends a write to the log only after a later flush has completed, or at once if the
// write bypassed the disk's cache (FUA). So the entries up to any one of them are the content of a
// disk that lost its volatile cache at that moment. Marks are entries that the test adds. One
// thread.
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
    uint64_t at = 0;     // its offset in the image, in bytes
    uint64_t bytes = 0;  // that the entry changes
    bool flush = false;
    bool fua = false;
    bool discard = false;
    std::string mark{};        // the mark's text; empty for other entries
    uint64_t data_in_log = 0;  // the offset of the new bytes in the log

    // Whether the disk promised at this entry that everything before it is durable.
    bool is_flush_point() const { return flush || fua || !mark.empty(); }
  };

  // Reads the entries of the log on `path`, a block device or a file.
  static absl::StatusOr<LoggedWrites> Open(const std::string& path);

  const std::vector<Entry>& entries() const { return entries_; }
  // Applies `entry` to `image`. DATA_LOSS if the log ends early or the entry exceeds the image.
  absl::Status Apply(const Entry& entry, std::vector<char>& image);

 private:
  explicit LoggedWrites(std::ifstream log) : log_(std::move(log)) {}
  absl::Status ReadEntries();

  std::ifstream log_;
  std::vector<Entry> entries_;
};

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_LOGGED_WRITES_H_
