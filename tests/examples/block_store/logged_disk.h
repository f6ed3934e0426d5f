// LoggedDisk: a disk with ext4 whose writes dm-log-writes notes, and a second disk on which the
// content of the first disk at any moment can be mounted. Needs root, and disks that may be
// overwritten, so it is for a guest of ./dev vm. One thread. The destructor unmounts the first
// disk.

#ifndef VERBENA_TESTS_EXAMPLES_BLOCK_STORE_LOGGED_DISK_H_
#define VERBENA_TESTS_EXAMPLES_BLOCK_STORE_LOGGED_DISK_H_

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/status.h"

namespace block_store {

struct DiskPaths {
  std::string disk;
  std::string log;
  std::string replay;  // as large as `disk`
};

inline absl::Status RunCommand(const std::string& command) {
  // The guest has no udev to make the names of devices.
  const int status = std::system(("DM_DISABLE_UDEV=1 " + command + " >&2").c_str());
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(fmt::format("'{}' ended with {}", command, status));
}

class LoggedDisk {
 public:
  static constexpr const char* kDirectory = "/tmp/logged";
  static constexpr const char* kReplayDirectory = "/tmp/replayed";

  explicit LoggedDisk(DiskPaths paths) : paths_(std::move(paths)) {}
  LoggedDisk(const LoggedDisk&) = delete;
  LoggedDisk& operator=(const LoggedDisk&) = delete;
  ~LoggedDisk() { Close().IgnoreError(); }

  // Formats the disk, and mounts it at kDirectory. From then on every write is noted.
  absl::Status Open() {
    mkdir(kDirectory, 0755);
    mkdir(kReplayDirectory, 0755);
    VERBENA_RETURN_IF_ERROR(RunCommand("mkfs.ext4 -q -F -b 4096 -J size=4 " + paths_.disk));
    VERBENA_RETURN_IF_ERROR(ReadImage());
    VERBENA_RETURN_IF_ERROR(RunCommand(fmt::format(
        "dmsetup create logged --table \"0 $(blockdev --getsz {0}) log-writes {0} {1}\"",
        paths_.disk, paths_.log)));
    mapped_ = true;
    return Mount("/dev/mapper/logged", kDirectory);
  }

  // Notes `text` in the log, after every write that is durable by now.
  static absl::Status Mark(const std::string& text) {
    return RunCommand("dmsetup message logged 0 mark " + text);
  }

  // Unmounts the disk, and completes the log. Does nothing if the disk is not open.
  absl::Status Close() {
    if (!mapped_) return absl::OkStatus();
    mapped_ = false;
    VERBENA_RETURN_IF_ERROR(Unmount(kDirectory));
    return RunCommand("dmsetup remove --retry logged");
  }

  // The content of the disk just after it was formatted.
  const std::vector<char>& formatted() const { return image_; }

  // Writes `image` to the second disk, and mounts it at kReplayDirectory. Mounting replays the file
  // system's journal.
  absl::Status MountReplay(const std::vector<char>& image) const {
    VERBENA_RETURN_IF_ERROR(WriteReplay(image));
    return Mount(paths_.replay, kReplayDirectory);
  }
  static absl::Status UnmountReplay() { return Unmount(kReplayDirectory); }

 private:
  static absl::Status Mount(const std::string& device, const char* directory) {
    if (mount(device.c_str(), directory, "ext4", 0, nullptr) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, "mount of " + device);
  }
  static absl::Status Unmount(const char* directory) {
    // The kernel lets go of a file a moment after it was closed.
    for (int tries = 0; tries < 1000; ++tries) {
      if (umount(directory) == 0) return absl::OkStatus();
      if (errno != EBUSY) break;
      usleep(10'000);
    }
    return absl::ErrnoToStatus(errno, fmt::format("umount of {}", directory));
  }

  absl::Status ReadImage() {
    const int fd = open(paths_.disk.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, paths_.disk);
    image_.resize(lseek(fd, 0, SEEK_END));
    size_t done = 0;
    while (done < image_.size()) {
      const ssize_t bytes = pread(fd, image_.data() + done, image_.size() - done, done);
      if (bytes <= 0) break;
      done += bytes;
    }
    close(fd);
    if (done == image_.size() && done > 0) return absl::OkStatus();
    return absl::DataLossError(fmt::format("{}: {} bytes were read", paths_.disk, done));
  }

  absl::Status WriteReplay(const std::vector<char>& image) const {
    const int fd = open(paths_.replay.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, paths_.replay);
    size_t done = 0;
    while (done < image.size()) {
      const ssize_t bytes = pwrite(fd, image.data() + done, image.size() - done, done);
      if (bytes <= 0) break;
      done += bytes;
    }
    close(fd);
    if (done == image.size()) return absl::OkStatus();
    return absl::DataLossError(fmt::format("{}: {} bytes were written", paths_.replay, done));
  }

  const DiskPaths paths_;
  std::vector<char> image_;
  bool mapped_ = false;
};

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_LOGGED_DISK_H_
