// ScratchDirectory: a new directory on the disk, removed with all that is in it.
//
// The directory lies in TMPDIR or /var/tmp, since /tmp may be memory, which says nothing of a disk.
//
//   absl::StatusOr<std::unique_ptr<ScratchDirectory>> scratch = ScratchDirectory::Make("kv_demo");

#ifndef VERBENA_EXAMPLES_KV_SCRATCH_DIRECTORY_H_
#define VERBENA_EXAMPLES_KV_SCRATCH_DIRECTORY_H_

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kv {

class ScratchDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<ScratchDirectory>> Make(const std::string& name) {
    const char* parent = std::getenv("TMPDIR");
    std::string path =
        std::string(parent != nullptr ? parent : "/var/tmp") + "/" + name + "_XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return absl::ErrnoToStatus(errno, path);
    return std::unique_ptr<ScratchDirectory>(new ScratchDirectory(std::move(path)));
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_SCRATCH_DIRECTORY_H_
