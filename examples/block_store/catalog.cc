#include "examples/block_store/catalog.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "fmt/format.h"
#include "verbena/rpc/log.h"
#include "verbena/rpc/task.h"

namespace block_store {
namespace {

constexpr std::string_view kSuffix = ".volume";
constexpr std::string_view kTemporarySuffix = ".creating";

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool IsGood(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || !IsAlphanumeric(name[0])) return false;
  for (const char c : name) {
    if (!IsAlphanumeric(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

// Makes a peer's text printable: it may hold anything.
std::string Printable(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, kMaxNameBytes)) {
    const bool plain = c >= ' ' && c <= '~' && c != '\'' && c != '\\';
    text += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return name.size() > kMaxNameBytes ? text + "..." : text;
}

absl::Status NoVolume(const std::string& name) {
  return absl::NotFoundError(fmt::format("there is no volume '{}'", name));
}

}  // namespace

absl::Status CheckVolumeName(const std::string& name) {
  if (IsGood(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("'{}' cannot be a volume's name: 1 to {} letters, digits, '.', '_' and '-', of "
                  "which the first is a letter or a digit",
                  Printable(name), kMaxNameBytes));
}

// --- Opening -------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Open(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "the volumes' directory " + directory);
  std::unique_ptr<Catalog> catalog(new Catalog(directory, fd));
  if (access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    return absl::ErrnoToStatus(errno, "the volumes' directory " + directory);
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, "lock of " + directory);
    return absl::FailedPreconditionError(directory + " is in use by another block_store_server");
  }
  VERBENA_RETURN_IF_ERROR(catalog->Load());
  VERBENA_RETURN_IF_ERROR(catalog->Sync());
  return catalog;
}

Catalog::~Catalog() { close(fd_); }

absl::Status Catalog::Load() {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory_, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    VERBENA_RETURN_IF_ERROR(LoadFile(entry->path().filename().string()));
  }
  if (error) return absl::ErrnoToStatus(error.value(), "the volumes' directory " + directory_);
  return absl::OkStatus();
}

absl::Status Catalog::Sync() const {
  if (fsync(fd_) == 0) return absl::OkStatus();
  if (errno == EIO) return absl::DataLossError("EIO: fsync of " + directory_);
  return absl::ErrnoToStatus(errno, "fsync of " + directory_);
}

absl::Status Catalog::LoadFile(const std::string& file_name) {
  const std::string path = directory_ + "/" + file_name;
  if (EndsWith(file_name, kTemporarySuffix)) {
    if (unlink(path.c_str()) != 0) return absl::ErrnoToStatus(errno, "removal of " + path);
    return absl::OkStatus();
  }
  if (!EndsWith(file_name, kSuffix)) return absl::OkStatus();
  auto volume = std::make_unique<Volume>();
  volume->name = file_name.substr(0, file_name.size() - kSuffix.size());
  volume->path = path;
  struct stat about;
  if (stat(path.c_str(), &about) != 0) return absl::ErrnoToStatus(errno, path);
  const auto bytes = static_cast<uint64_t>(about.st_size);
  if (!IsGood(volume->name) || !S_ISREG(about.st_mode) || bytes == 0 || bytes % kBlockBytes != 0 ||
      bytes / kBlockBytes > kMaxVolumeBlocks) {
    return absl::FailedPreconditionError(
        fmt::format("{} ({} bytes) is no volume of whole {}-byte blocks: something else made or "
                    "changed it; move it away",
                    path, bytes, kBlockBytes));
  }
  volume->blocks = bytes / kBlockBytes;
  if (volumes_.size() == kMaxVolumes) {
    return absl::ResourceExhaustedError(
        fmt::format("{} holds more than {} volumes", directory_, kMaxVolumes));
  }
  std::string name = volume->name;
  volumes_.emplace(std::move(name), std::move(volume));
  return absl::OkStatus();
}

// --- Making a volume -----------------------------------------------------------------------------

absl::StatusOr<Catalog::Claim> Catalog::Take(const std::string& name, uint64_t blocks) {
  VERBENA_RETURN_IF_ERROR(CheckVolumeName(name));
  if (blocks == 0 || blocks > kMaxVolumeBlocks) {
    return absl::InvalidArgumentError(
        fmt::format("a volume has 1 to {} blocks, not {}", kMaxVolumeBlocks, blocks));
  }
  auto volume = std::make_unique<Volume>();
  volume->name = name;
  volume->blocks = blocks;
  volume->path = fmt::format("{}/{}{}", directory_, name, kSuffix);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (volumes_.contains(name)) {
    return absl::AlreadyExistsError(fmt::format("volume '{}' exists already", name));
  }
  if (volumes_.size() == kMaxVolumes) {
    return absl::ResourceExhaustedError(
        fmt::format("there are {} volumes already, which is the most", kMaxVolumes));
  }
  volumes_.emplace(name, nullptr);
  // Never the same twice: the kernel may still carry out a cancelled open of an earlier claim.
  std::string temporary = fmt::format("{}/{}.{}{}", directory_, name, ++claims_, kTemporarySuffix);
  return Claim(*this, std::move(volume), std::move(temporary));
}

Catalog::Claim::~Claim() {
  // A rename of unknown outcome leaves the name taken: the next Open() finds the file.
  if (catalog_ == nullptr || step_ == Step::kRenaming) return;
  if (step_ == Step::kMade) unlink(temporary_path_.c_str());
  if (step_ == Step::kRenamed) unlink(volume_->path.c_str());
  const std::lock_guard<std::mutex> lock(catalog_->mutex_);
  catalog_->volumes_.erase(volume_->name);
}

void Catalog::Claim::Commit() {
  VERBENA_CHECK(step_ == Step::kRenamed) << "volume " << volume_->name << ", step " << step_;
  const std::lock_guard<std::mutex> lock(catalog_->mutex_);
  catalog_->volumes_[volume_->name] = std::move(volume_);
  catalog_ = nullptr;
}

// --- Looking up ----------------------------------------------------------------------------------

absl::StatusOr<Volume*> Catalog::Find(const std::string& name) {
  VERBENA_RETURN_IF_ERROR(CheckVolumeName(name));
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = volumes_.find(name);
  if (found == volumes_.end() || found->second == nullptr) return NoVolume(name);
  return found->second.get();
}

std::vector<const Volume*> Catalog::List(const std::string& after, size_t count) {
  std::vector<const Volume*> page;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto next = volumes_.upper_bound(after); next != volumes_.end() && page.size() < count;
       ++next) {
    if (next->second != nullptr) page.push_back(next->second.get());
  }
  return page;
}

}  // namespace block_store
