#include "tools/verbena/host_facts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tools/verbena/small_files.h"
#include "verbena/transport/device/process_memory.h"

namespace verbena::doctor {
namespace {

// Modules that RDMA needs, and the drivers of cards: those of the kernel's drivers/infiniband.
constexpr const char* kModules[] = {"bnxt_re",   "efa",      "erdma",    "hns_roce", "ib_core",
                                    "ib_uverbs", "irdma",    "mlx4_ib",  "mlx5_ib",  "qedr",
                                    "rdma_cm",   "rdma_rxe", "rdma_ucm", "siw"};

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::vector<HugePages> ReadHugePages(const std::string& root) {
  const std::string top = root + "sys/kernel/mm/hugepages/";
  std::vector<HugePages> pools;
  for (const std::string& name : Names(top)) {
    HugePages pool;
    pool.page_kib = std::strtoull(name.c_str() + std::min(name.size(), size_t{10}), nullptr, 10);
    pool.total = ReadNumber(top + name + "/nr_hugepages").value_or(0);
    pool.free = ReadNumber(top + name + "/free_hugepages").value_or(0);
    if (absl::StartsWith(name, "hugepages-")) pools.push_back(pool);
  }
  return pools;
}

// "always [madvise] never" -> "madvise"
std::string Chosen(const std::string& text) {
  const size_t from = text.find('[');
  const size_t to = text.find(']');
  if (from == std::string::npos || to == std::string::npos || to < from) return "";
  return text.substr(from + 1, to - from - 1);
}

bool InContainer(const std::string& root) {
  if (Exists(root + ".dockerenv") || Exists(root + "run/.containerenv")) return true;
  const std::string init = ReadSmallFile(root + "proc/1/cgroup");
  for (const char* mark : {"docker", "kubepods", "containerd", "libpod", "lxc"}) {
    if (absl::StrContains(init, mark)) return true;
  }
  return false;
}

// "mlx5_0 hca_handle=2 hca_object=2000" is a limit, "mlx5_0 hca_handle=max hca_object=max" none.
std::vector<std::string> RdmaLimits(const std::string& cgroup) {
  std::vector<std::string> limits;
  for (std::string& line : Lines(ReadSmallFile(cgroup + "rdma.max"))) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const bool limited = std::any_of(words.begin(), words.end(), [](const std::string& word) {
      return absl::StrContains(word, '=') && !absl::EndsWith(word, "=max");
    });
    if (limited) limits.push_back(std::move(line));
  }
  return limits;
}

std::vector<std::string> LoadedModules(const std::string& root) {
  std::vector<std::string> loaded;
  for (const char* module : kModules) {
    if (Exists(root + "sys/module/" + module)) loaded.emplace_back(module);
  }
  return loaded;
}

std::vector<DeviceFile> DeviceFiles(const std::string& root) {
  std::vector<DeviceFile> files;
  for (const std::string& name : Names(root + "dev/infiniband")) {
    if (!absl::StartsWith(name, "uverbs") && name != "rdma_cm") continue;
    const std::string path = absl::StrCat(root, "dev/infiniband/", name);
    files.push_back({"/dev/infiniband/" + name, ::access(path.c_str(), R_OK | W_OK) == 0});
  }
  return files;
}

std::vector<std::string> UsableInterfaces(const std::string& root) {
  const std::string top = root + "sys/class/net/";
  std::vector<std::string> usable;
  for (const std::string& name : Names(top)) {
    // ARPHRD_ETHER, and up as far as the kernel can tell ("unknown": drivers without carrier).
    if (ReadNumber(top + name + "/type").value_or(0) != 1) continue;
    const std::string state = ReadSmallFile(top + name + "/operstate");
    if (state == "up" || state == "unknown") usable.push_back(name);
  }
  return usable;
}

uint64_t LimitOf(rlim_t limit) { return limit == RLIM_INFINITY ? kUnlimited : uint64_t{limit}; }

}  // namespace

HostFacts ReadHostFacts(const std::string& root, uint64_t memlock_bytes,
                        uint64_t memlock_hard_bytes) {
  const std::string top = absl::EndsWith(root, "/") ? root : root + "/";
  HostFacts facts;
  facts.kernel = ReadSmallFile(top + "proc/sys/kernel/osrelease");
  facts.memlock_bytes = memlock_bytes;
  facts.memlock_hard_bytes = memlock_hard_bytes;
  const internal::ProcessMemory memory =
      internal::ReadProcessMemory(top, memlock_bytes, memlock_hard_bytes);
  facts.may_lock_any_memory = memory.may_lock_any;
  facts.huge_pages = ReadHugePages(top);
  facts.transparent_huge_pages =
      Chosen(ReadSmallFile(top + "sys/kernel/mm/transparent_hugepage/enabled"));
  facts.container = InContainer(top);
  if (memory.cgroup_max != kUnlimited) facts.cgroup_memory_bytes = memory.cgroup_max;
  facts.cgroup_rdma = RdmaLimits(internal::CgroupDirectory(top));
  facts.modules = LoadedModules(top);
  facts.device_files = DeviceFiles(top);
  facts.io_uring_forbidden = ReadNumber(top + "proc/sys/kernel/io_uring_disabled").value_or(0) == 2;
  facts.interfaces = UsableInterfaces(top);
  return facts;
}

HostFacts ReadHostFacts() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return ReadHostFacts("/", LimitOf(limit.rlim_cur), LimitOf(limit.rlim_max));
}

}  // namespace verbena::doctor
