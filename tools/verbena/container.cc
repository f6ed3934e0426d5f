#include "tools/verbena/container.h"

#include <cstdint>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/link/limits.h"

namespace verbena::doctor {
namespace {

constexpr const char* kSeccomp[] = {"no filter", "strict", "a filter"};

std::string Kib(uint64_t bytes) { return fmt::format("{} KiB", (bytes + 1023) / 1024); }

std::string IoUringOf(const ContainerFacts& facts) {
  if (facts.io_uring.ok()) return "allowed";
  return fmt::format("refused ({}): executors sleep in epoll, and files take threads",
                     std::string(facts.io_uring.message()));
}

std::string UserOf(const ContainerFacts& facts) {
  return fmt::format("{}{}{}", facts.user, facts.user == 0 ? " (root)" : "",
                     facts.user_namespace ? ", another one to the host (user namespace)" : "");
}

// What RDMA devices may pin, in words.
std::string MemlockOf(const HostFacts& host) {
  if (host.may_lock_any_memory || host.memlock_bytes == kUnlimited) {
    return "RDMA devices may pin any memory";
  }
  const uint64_t small = SmallMemoryPerExecutor();
  if (host.memlock_bytes < small) return "too little for RDMA devices";
  if (host.memlock_bytes < MemoryPerExecutor()) {
    return fmt::format("on one RDMA device {} executor(s) run with LinkLimits::Small()",
                       host.memlock_bytes / small);
  }
  return fmt::format("on one RDMA device {} executor(s) run with default limits",
                     host.memlock_bytes / MemoryPerExecutor());
}

}  // namespace

std::string DescribeContainer(const ContainerFacts& facts, const HostFacts& host) {
  std::string out = "container\n";
  const int mode = facts.seccomp >= 0 && facts.seccomp <= 2 ? facts.seccomp : 2;
  out += fmt::format("  user              {}{}\n", UserOf(facts),
                     facts.no_new_privileges ? ", no new privileges" : "");
  out += fmt::format("  root file system  {}\n",
                     facts.read_only_root ? "read-only, which is enough: Verbena writes no files"
                                          : "may be written");
  out += fmt::format("  seccomp           {}\n", kSeccomp[mode]);
  out += fmt::format("  io_uring          {}\n", IoUringOf(facts));
  out += fmt::format("  memlock           {}\n", MemlockOf(host));
  out += fmt::format("  memory.max        {}\n", host.cgroup_memory_bytes.has_value()
                                                     ? Kib(*host.cgroup_memory_bytes)
                                                     : std::string("no bound"));
  out += fmt::format("  cores             {}{}\n", facts.cores,
                     facts.core_quota.has_value()
                         ? fmt::format(", of which a quota grants {:.2f}", *facts.core_quota)
                         : "");
  return out;
}

std::vector<Finding> ExamineContainer(const ContainerFacts& facts, const HostFacts& host) {
  std::vector<Finding> findings;
  const auto add = [&findings](Severity severity, std::string what, std::string mend) {
    findings.push_back({severity, std::move(what), std::move(mend)});
  };
  if (!facts.io_uring.ok()) {
    const bool by_kernel = facts.io_uring_disabled.value_or(0) != 0;
    add(Severity::kAdvice,
        fmt::format("io_uring is refused ({}): all works, but waking takes longer, and O_DIRECT "
                    "reads go through threads",
                    by_kernel
                        ? fmt::format("kernel.io_uring_disabled is {}", *facts.io_uring_disabled)
                        : std::string("by the seccomp profile, or the kernel lacks it")),
        by_kernel ? "sysctl kernel.io_uring_disabled=0 on the host"
                  : "a profile that allows io_uring_setup, io_uring_enter and io_uring_register "
                    "(docker run --security-opt seccomp=FILE; Kubernetes: "
                    "securityContext.seccompProfile; systemd: SystemCallFilter=@io-uring)");
  }
  if (facts.user_namespace && host.memlock_bytes != kUnlimited) {
    add(Severity::kAdvice,
        "CAP_IPC_LOCK of this container does not lift RLIMIT_MEMLOCK, because its users are others "
        "on the host (user namespace)",
        "raise the limit on the host instead: LimitMEMLOCK= of the container runtime's unit");
  } else if (!host.may_lock_any_memory && host.memlock_bytes < MemoryPerExecutor()) {
    add(Severity::kAdvice,
        fmt::format("RLIMIT_MEMLOCK is {}, and CAP_IPC_LOCK is not granted: RDMA devices run with "
                    "LinkLimits::Small() at most",
                    Kib(host.memlock_bytes)),
        "docker run --ulimit memlock=-1 or --cap-add IPC_LOCK; Kubernetes has no ulimits: "
        "securityContext.capabilities.add: [IPC_LOCK], or LimitMEMLOCK= of the container runtime's "
        "unit; systemd: LimitMEMLOCK=infinity");
  }
  const uint64_t most = internal::PinnedMemoryOf(LinkLimits(), /*emulated=*/true).all();
  if (host.cgroup_memory_bytes.has_value() && *host.cgroup_memory_bytes < most) {
    add(Severity::kWarning,
        fmt::format("memory.max is {}, and one executor may take {} on each device under load, for "
                    "which the kernel would kill the process",
                    Kib(*host.cgroup_memory_bytes), Kib(most)),
        "lower LinkLimits::memory, or raise the bound (docker run --memory; Kubernetes: "
        "resources.limits.memory; systemd: MemoryMax=)");
  }
  if (facts.core_quota.has_value()) {
    add(Severity::kWarning,
        fmt::format(
            "the cgroup grants {:.2f} cores of time: an executor that polls uses it up, and "
            "then stands still until the next period",
            *facts.core_quota),
        "ExecutorMode::kEvent, or cores of one's own instead of a quota (docker run --cpuset-cpus; "
        "Kubernetes: the static CPU manager, with whole cores in requests and limits alike)");
  }
  return findings;
}

}  // namespace verbena::doctor
