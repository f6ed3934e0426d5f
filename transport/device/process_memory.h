// ProcessMemory: how much memory the kernel lets this process pin, and how much it lets it have:
// RLIMIT_MEMLOCK, CAP_IPC_LOCK, and memory.max of the cgroups that the process is in.
//
// A value, read once from /proc and /sys below a root directory, so that a test can make up a
// machine. Any thread. Nothing fails: what cannot be read counts as no limit.
//
//   const ProcessMemory memory = ReadProcessMemory();
//   if (memory.MayPin(RootPins::kFreely) < bytes) return absl::ResourceExhaustedError(...);

#ifndef VERBENA_TRANSPORT_DEVICE_PROCESS_MEMORY_H_
#define VERBENA_TRANSPORT_DEVICE_PROCESS_MEMORY_H_

#include <cstdint>
#include <string>

namespace verbena::internal {

inline constexpr uint64_t kNoMemoryLimit = ~uint64_t{0};

// Whether CAP_IPC_LOCK lifts RLIMIT_MEMLOCK for a device. The kernel's RDMA core says so for all
// devices but Soft-iWARP, which counts by itself.
enum class RootPins : uint8_t { kFreely, kWithinTheLimit };

struct ProcessMemory {
  uint64_t memlock = kNoMemoryLimit;       // RLIMIT_MEMLOCK: the soft limit
  uint64_t memlock_hard = kNoMemoryLimit;  // and the hard one
  uint64_t pinned = 0;                     // by this process, at the time of reading
  // CAP_IPC_LOCK is in effect, in the user namespace of the host: the kernel asks there.
  bool may_lock_any = false;
  // The smallest memory.max of the process's cgroup and those above it, and the file that has it.
  uint64_t cgroup_max = kNoMemoryLimit;
  std::string cgroup_file;

  // Bytes that may still be pinned; kNoMemoryLimit if nothing bounds them.
  uint64_t MayPin(RootPins root) const {
    if (memlock == kNoMemoryLimit || (may_lock_any && root == RootPins::kFreely)) {
      return kNoMemoryLimit;
    }
    return memlock > pinned ? memlock - pinned : 0;
  }
};

// Of this machine and process.
ProcessMemory ReadProcessMemory();
// Of the machine whose /proc and /sys lie below `root`. The caller gives RLIMIT_MEMLOCK, which is
// in no file that `root` would have.
ProcessMemory ReadProcessMemory(const std::string& root, uint64_t memlock, uint64_t memlock_hard);

// The directory of the process's cgroup in the unified hierarchy (version 2), with a slash at its
// end: `root` + "sys/fs/cgroup/kubepods/pod7/". The top one if the process is in none.
std::string CgroupDirectory(const std::string& root);

// Whether the text of /proc/self/uid_map says that the host knows the process's users by other ids.
// False for an empty one: then the kernel has no user namespaces.
bool InUserNamespace(const std::string& uid_map);

// VmPin of the text of /proc/self/status, in bytes; 0 if it has none.
uint64_t PinnedBytes(const std::string& proc_status);

// What to set so that more may be pinned, wherever the process runs.
inline constexpr char kMemlockRemedy[] =
    "raise it by ulimit -l, LimitMEMLOCK= of the systemd unit, or --ulimit memlock= of the "
    "container (Kubernetes: the container runtime's own LimitMEMLOCK), or grant CAP_IPC_LOCK";

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_PROCESS_MEMORY_H_
