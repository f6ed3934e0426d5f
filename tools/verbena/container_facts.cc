#include "tools/verbena/container_facts.h"

#include <linux/io_uring.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "absl/strings/match.h"
#include "tools/verbena/small_files.h"
#include "verbena/transport/device/near_cores.h"
#include "verbena/transport/device/process_memory.h"

namespace verbena::doctor {
namespace {

// The number behind `label` in the text of /proc/self/status; 0 if it has none.
int NumberBehind(std::string_view label, const std::string& status) {
  for (const std::string& line : Lines(status)) {
    if (line.compare(0, label.size(), label) == 0) return std::atoi(line.c_str() + label.size());
  }
  return 0;
}

// "150000 100000" are 1.5 cores, and "max 100000" is no quota. The smallest one on the way up to
// the top counts.
std::optional<double> ReadCoreQuota(const std::string& root) {
  const std::string top = root + "sys/fs/cgroup/";
  std::string directory = internal::CgroupDirectory(root);
  std::optional<double> least;
  while (true) {
    const std::string text = ReadSmallFile(directory + "cpu.max");
    char* end = nullptr;
    const double quota = std::strtod(text.c_str(), &end);
    const double period = std::strtod(end, nullptr);
    if (quota > 0 && period > 0) least = std::min(least.value_or(quota / period), quota / period);
    if (directory.size() <= top.size()) return least;
    directory.resize(directory.rfind('/', directory.size() - 2) + 1);
  }
}

absl::Status TryIoUring() {
  io_uring_params parameters = {};
  const auto ring = static_cast<int>(syscall(SYS_io_uring_setup, 1, &parameters));
  if (ring < 0) return absl::ErrnoToStatus(errno, "io_uring_setup");
  close(ring);
  return absl::OkStatus();
}

}  // namespace

ContainerFacts ReadContainerFiles(const std::string& root) {
  const std::string top = absl::EndsWith(root, "/") ? root : root + "/";
  const std::string status = ReadSmallFile(top + "proc/self/status");
  ContainerFacts facts;
  facts.seccomp = NumberBehind("Seccomp:", status);
  facts.no_new_privileges = NumberBehind("NoNewPrivs:", status) != 0;
  facts.user_namespace = internal::InUserNamespace(ReadSmallFile(top + "proc/self/uid_map"));
  facts.io_uring_disabled = ReadNumber(top + "proc/sys/kernel/io_uring_disabled");
  facts.core_quota = ReadCoreQuota(top);
  return facts;
}

ContainerFacts ReadContainerFacts() {
  ContainerFacts facts = ReadContainerFiles("/");
  facts.user = geteuid();
  struct statvfs root = {};
  facts.read_only_root = statvfs("/", &root) == 0 && (root.f_flag & ST_RDONLY) != 0;
  facts.cores = internal::AllowedCores().size();
  facts.io_uring = TryIoUring();
  return facts;
}

}  // namespace verbena::doctor
