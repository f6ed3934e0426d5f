// Catalog: the directory that volumes lie in, and which there are.
//
// A volume NAME of n blocks is the file NAME.volume of n × 4096 bytes, nothing else: it is made
// under another name (….creating), and renamed once its size is durable. So a crash leaves a whole
// volume or none; Open() removes what a crash left half made. Open() also syncs the directory: a
// process may have died between renaming a volume and syncing its name, and a volume is served
// only if it outlives a power loss. The directory is locked for as long as the catalog lives: two
// servers cannot write to one volume unknowingly.
//
// The catalog keeps the names; VolumeStore makes the files, and reads and writes them. Only Open()
// and the end of an abandoned Claim make system calls. Any thread. Volumes stay at their address
// until the catalog goes.
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
  // A flush has failed: the kernel may have dropped what was written, and would not say so again.
  std::atomic<bool> flush_failed{false};

  uint64_t bytes() const { return blocks * kBlockBytes; }
};

// INVALID_ARGUMENT unless `name` is 1 to 64 letters, digits, '.', '_' or '-', and begins with none
// of the last three.
absl::Status CheckVolumeName(const std::string& name);

class Catalog {
 public:
  // Blocks while it reads and syncs the directory. NOT_FOUND, FAILED_PRECONDITION (no directory,
  // locked by another process, or a volume of an odd size), PERMISSION_DENIED or DATA_LOSS (the
  // directory cannot be synced), with the path.
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(const std::string& directory);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog();

  // A name that is taken while its volume is made. The maker notes each step, so that a claim which
  // ends early removes the file that its maker made, and no other. Then the name is free again,
  // unless it is unknown which files there are. Must not outlive the catalog.
  class Claim {
   public:
    enum class Step {
      kTaken,     // the claim has no file
      kMade,      // its file is at temporary_path()
      kRenaming,  // its file has one of both names, or both
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
    // From now on the volume is found. Precondition: kRenamed, and the directory was synced.
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
  // RESOURCE_EXHAUSTED when there are kMaxVolumes.
  absl::StatusOr<Claim> Take(const std::string& name, uint64_t blocks);
  // INVALID_ARGUMENT or NOT_FOUND.
  absl::StatusOr<Volume*> Find(const std::string& name);
  // Up to `count` of those behind `after`, by name.
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
