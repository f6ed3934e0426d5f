#include "examples/block_store/local_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "verbena/rpc/task.h"

namespace block_store {
namespace {

constexpr mode_t kPermissions = 0777;

const char* NameOfType(mode_t mode) {
  if (S_ISLNK(mode)) return "symbolic link";
  if (S_ISFIFO(mode)) return "pipe";
  if (S_ISSOCK(mode)) return "socket";
  return "device";
}

// The path of `name` in `directory`. An empty `directory` is the tree's root.
std::string Below(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : directory + "/" + name;
}

class Walk {
 public:
  explicit Walk(LocalTree& local) : local_(local) {}

  absl::Status Directory(const std::string& relative) {
    std::vector<std::string> names;
    std::error_code error;
    const std::string path = Below(local_.root, relative);
    std::filesystem::directory_iterator entry(path, error);
    for (const std::filesystem::directory_iterator end; !error && entry != end;
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) return absl::ErrnoToStatus(error.value(), path);
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      VERBENA_RETURN_IF_ERROR(Entry(Below(relative, name)));
    }
    return absl::OkStatus();
  }

  absl::Status Entry(const std::string& relative) {
    const std::string path = Below(local_.root, relative);
    struct stat about;
    if (lstat(path.c_str(), &about) != 0) return absl::ErrnoToStatus(errno, path);
    if (S_ISDIR(about.st_mode)) {
      local_.tree.directories.push_back({relative, about.st_mode & kPermissions});
      return Directory(relative);
    }
    if (!S_ISREG(about.st_mode)) {
      local_.skipped.push_back({path, NameOfType(about.st_mode)});
      return absl::OkStatus();
    }
    if (access(path.c_str(), R_OK) != 0) return absl::ErrnoToStatus(errno, path);
    local_.tree.files.push_back({.path = relative,
                                 .mode = about.st_mode & kPermissions,
                                 .bytes = static_cast<uint64_t>(about.st_size)});
    return absl::OkStatus();
  }

 private:
  LocalTree& local_;
};

}  // namespace

absl::StatusOr<LocalTree> WalkTree(const std::string& path) {
  struct stat about;
  if (stat(path.c_str(), &about) != 0) return absl::ErrnoToStatus(errno, path);
  LocalTree local;
  absl::Status walked;
  if (S_ISDIR(about.st_mode)) {
    local.root = path;
    walked = Walk(local).Directory("");
  } else {
    const std::filesystem::path whole(path);
    local.root = whole.has_parent_path() ? whole.parent_path().string() : ".";
    walked = Walk(local).Entry(whole.filename().string());
  }
  if (!walked.ok()) return walked;
  return local;
}

absl::Status MakeTree(const std::string& directory, const Tree& tree) {
  if (mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, directory);
  }
  for (const TreeEntry& made : tree.directories) {
    const std::string path = Below(directory, made.path);
    if (mkdir(path.c_str(), 0700) != 0) return absl::ErrnoToStatus(errno, path);
  }
  for (const FileEntry& file : tree.files) {
    const std::string path = Below(directory, file.path);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return absl::ErrnoToStatus(errno, path);
    close(fd);
  }
  return absl::OkStatus();
}

absl::Status SetModes(const std::string& directory, const Tree& tree) {
  for (const FileEntry& file : tree.files) {
    const std::string path = Below(directory, file.path);
    if (chmod(path.c_str(), file.mode) != 0) return absl::ErrnoToStatus(errno, path);
  }
  // Inner directories first: the permissions of an outer one may forbid access to them.
  for (auto made = tree.directories.rbegin(); made != tree.directories.rend(); ++made) {
    const std::string path = Below(directory, made->path);
    if (chmod(path.c_str(), made->mode) != 0) return absl::ErrnoToStatus(errno, path);
  }
  return absl::OkStatus();
}

}  // namespace block_store
