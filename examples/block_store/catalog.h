// Catalog: the directory of a store's volumes, and the list of these volumes.
//
// A volume NAME of n blocks is the file NAME.volume of n × 4096 bytes, and nothing else. The file
// is made under another name (….creating), and renamed once its size is durable. So a crash leaves
// a whole volume or none; Open() removes files that a crash left half made. Open() also syncs the
// directory: a process may have died between renaming a volume and syncing its name, and a volume
// is served only if it outlives a power loss. The catalog holds a lock on the directory, so that
// two servers cannot write to one volume.
//
// The catalog keeps the names; VolumeStore makes the files, and reads and writes them. Only Open()
// and the destructors make system calls. Any thread. Volumes stay at their address until the
// catalog is destroyed.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::Open("/srv/volumes"));
//   VERBENA_ASSIGN_OR_RETURN(Volume * volume, catalog->Find("db"));

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_CATALOG_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_CATALOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/limits.h"

namespace block_store {

struct Volume {
  std::string name;
  uint64_t blocks = 0;
  std::string path;
  // A flush has failed: the kernel may have dropped written data, and reports that only once.
  std::atomic<bool> flush_failed{false};

  uint64_t bytes() const { return blocks * kBlockBytes; }
};

// INVALID_ARGUMENT unless `name` is 1 to 64 letters, digits, '.', '_' or '-', and begins with none
// of the last three.
absl::Status CheckVolumeName(const std::string& name);

class Catalog {
 public:
  // Blocks while it reads and syncs the directory. Errors name the path: NOT_FOUND,
  // FAILED_PRECONDITION (no directory, locked by another process, or a file that is no valid
  // volume), PERMISSION_DENIED, RESOURCE_EXHAUSTED (more than kMaxVolumes) or DATA_LOSS (the
  // directory cannot be synced).
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(const std::string& directory);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog();

  // Reserves a name while its volume is made. The maker notes each step, so that a claim that is
  // destroyed without Commit() removes the file that its maker made, and no other. The name is then
  // free again, except in step kRenaming: its file's name is not known until the next Open(). Must
  // not outlive the catalog.
  class Claim {
   public:
    enum class Step {
      kTaken,     // the claim has no file
      kMade,      // its file is at temporary_path()
      kRenaming,  // its file is at temporary_path(), at path() or at both
      kRenamed,   // its file is at path()
    };

    Claim(Claim&& other) noexcept
        : catalog_(std::exchange(other.catalog_, nullptr)),
          volume_(std::move(other.volume_)),
          temporary_path_(std::move(other.temporary_path_)),
          step_(other.step_) {}
    Claim& operator=(Claim&&) = delete;
    ~Claim();

    const std::string& temporary_path() const { return temporary_path_; }
    const std::string& path() const { return volume_->path; }
    const Volume& volume() const { return *volume_; }
    Step step() const { return step_; }
    void Note(Step step) { step_ = step; }
    // Adds the volume to the catalog. Precondition: kRenamed, and the directory was synced.
    void Commit();

   private:
    friend class Catalog;
    Claim(Catalog& catalog, std::unique_ptr<Volume> volume, std::string temporary_path)
        : catalog_(&catalog),
          volume_(std::move(volume)),
          temporary_path_(std::move(temporary_path)) {}

    Catalog* catalog_;
    std::unique_ptr<Volume> volume_;
    std::string temporary_path_;
    Step step_ = Step::kTaken;
  };

  // INVALID_ARGUMENT, ALREADY_EXISTS (also while another claim of the name lives), or
  // RESOURCE_EXHAUSTED if there are kMaxVolumes already.
  absl::StatusOr<Claim> Take(const std::string& name, uint64_t blocks);
  // INVALID_ARGUMENT or NOT_FOUND.
  absl::StatusOr<Volume*> Find(const std::string& name);
  // The first `count` volumes whose names sort after `after`, in order.
  std::vector<const Volume*> List(const std::string& after, size_t count);

  const std::string& directory() const { return directory_; }

 private:
  Catalog(std::string directory, int fd) : directory_(std::move(directory)), fd_(fd) {}
  absl::Status Load();
  absl::Status Sync() const;
  absl::Status LoadFile(const std::string& file_name);

  const std::string directory_;
  const int fd_;  // holds the lock
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Volume>> volumes_;  // nullptr: claimed
  uint64_t claims_ = 0;
};

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_CATALOG_H_
