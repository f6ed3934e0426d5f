// HostFacts: the facts about a machine, besides its RDMA devices, that decide whether RDMA works.
//
// Read from /proc, /sys and /dev below a root directory, so that a test can make up a machine.
// Facts that cannot be read keep their defaults: the doctor reports what it found, and never fails.

#ifndef VERBENA_TOOLS_VERBENA_HOST_FACTS_H_
#define VERBENA_TOOLS_VERBENA_HOST_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace verbena::doctor {

inline constexpr uint64_t kUnlimited = ~uint64_t{0};  // as internal::kNoMemoryLimit

// A pool of hugepages of one size.
struct HugePages {
  uint64_t page_kib = 0;
  uint64_t total = 0;
  uint64_t free = 0;
};

// A device file that RDMA programs open.
struct DeviceFile {
  std::string path;  // "/dev/infiniband/uverbs0"
  bool usable = false;
};

struct HostFacts {
  std::string kernel;                // "6.1.0-56-amd64"
  uint64_t memlock_bytes = 0;        // RLIMIT_MEMLOCK, soft
  uint64_t memlock_hard_bytes = 0;   // and hard
  bool may_lock_any_memory = false;  // CAP_IPC_LOCK in effect on the host
  std::vector<HugePages> huge_pages;
  std::string transparent_huge_pages;  // "always", "madvise", "never"; empty: not there
  bool container = false;
  // The smallest memory.max of our cgroup and those above it, if one has it.
  std::optional<uint64_t> cgroup_memory_bytes;
  std::vector<std::string> cgroup_rdma;  // lines of rdma.max that are a limit
  std::vector<std::string> modules;      // RDMA modules that are loaded, sorted
  std::vector<DeviceFile> device_files;  // of /dev/infiniband, sorted
  bool io_uring_forbidden = false;       // kernel.io_uring_disabled
  // Interfaces with an address that peers can reach: "eth0". For advice on software devices.
  std::vector<std::string> interfaces;
};

// `root` is "/" for this machine. The process's limits are not below `root`, so the caller gives
// them.
HostFacts ReadHostFacts(const std::string& root, uint64_t memlock_bytes,
                        uint64_t memlock_hard_bytes);

// Reads the facts of this machine and process.
HostFacts ReadHostFacts();

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_HOST_FACTS_H_
