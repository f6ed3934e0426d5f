#include "verbena/transport/device/process_memory.h"

#include <sys/resource.h>

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

namespace verbena::internal {
namespace {

// Bit of CAP_IPC_LOCK in the masks of /proc/self/status (capability.h).
constexpr int kCapIpcLock = 14;

// At most 64 KiB of a file of /proc or /sys; empty if it cannot be read.
std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::string text(size_t{64} << 10, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::string WithSlash(const std::string& root) {
  return !root.empty() && root.back() == '/' ? root : root + "/";
}

// CapEff of the text of /proc/self/status; 0 if it has none.
uint64_t EffectiveCapabilities(const std::string& status) {
  static constexpr std::string_view kLabel = "CapEff:";
  const size_t at = status.find(kLabel);
  if (at == std::string::npos) return 0;
  return std::strtoull(status.c_str() + at + kLabel.size(), nullptr, 16);
}

uint64_t NumberOr(const std::string& text, uint64_t otherwise) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? number : otherwise;
}

// A cgroup's bound holds for all below it, so the smallest one on the way up counts.
void ReadCgroup(const std::string& root, ProcessMemory& memory) {
  const std::string top = root + "sys/fs/cgroup/";
  std::string directory = CgroupDirectory(root);
  while (true) {
    const std::string file = directory + "memory.max";
    const uint64_t bound = NumberOr(TextOf(file), kNoMemoryLimit);
    if (bound < memory.cgroup_max) {
      memory.cgroup_max = bound;
      memory.cgroup_file = file;
    }
    if (directory.size() <= top.size()) return;
    directory.resize(directory.rfind('/', directory.size() - 2) + 1);
  }
}

uint64_t LimitOf(rlim_t limit) { return limit == RLIM_INFINITY ? kNoMemoryLimit : limit; }

}  // namespace

ProcessMemory ReadProcessMemory() {
  rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return ReadProcessMemory("/", LimitOf(limit.rlim_cur), LimitOf(limit.rlim_max));
}

ProcessMemory ReadProcessMemory(const std::string& root, uint64_t memlock, uint64_t memlock_hard) {
  const std::string top = WithSlash(root);
  const std::string status = TextOf(top + "proc/self/status");
  ProcessMemory memory;
  memory.memlock = memlock;
  memory.memlock_hard = memlock_hard;
  memory.pinned = PinnedBytes(status);
  memory.may_lock_any = (EffectiveCapabilities(status) >> kCapIpcLock & 1) != 0 &&
                        !InUserNamespace(TextOf(top + "proc/self/uid_map"));
  ReadCgroup(top, memory);
  return memory;
}

std::string CgroupDirectory(const std::string& root) {
  std::string top = WithSlash(root) + "sys/fs/cgroup/";
  std::istringstream lines(TextOf(WithSlash(root) + "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    // "0::/kubepods/pod7"; a cgroup outside of the namespace begins with "0::/..".
    if (line.rfind("0::/", 0) != 0 || line.rfind("0::/..", 0) == 0) continue;
    const std::string below = line.substr(4);
    return below.empty() ? top : top + below + "/";
  }
  return top;
}

// The host's namespace maps all ids to themselves.
bool InUserNamespace(const std::string& uid_map) {
  if (uid_map.empty()) return false;
  std::istringstream words(uid_map);
  uint64_t inside = 1, outside = 1, count = 0;
  words >> inside >> outside >> count;
  return inside != 0 || outside != 0 || count != 0xffffffff;
}

uint64_t PinnedBytes(const std::string& proc_status) {
  static constexpr std::string_view kLabel = "\nVmPin:";
  const size_t at = proc_status.find(kLabel);
  if (at == std::string::npos) return 0;
  return std::strtoull(proc_status.c_str() + at + kLabel.size(), nullptr, 10) * 1024;
}

}  // namespace verbena::internal
