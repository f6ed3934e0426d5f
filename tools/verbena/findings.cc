#include "tools/verbena/findings.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/link/limits.h"

namespace verbena::doctor {
namespace {

class Examination {
 public:
  Examination(const HostFacts& host, const std::vector<DeviceFacts>& devices,
              const absl::Status& soft)
      : host_(host), devices_(devices) {
    result_.rdma_present = !devices.empty();
    result_.soft_works = soft.ok();
    if (!soft.ok()) {
      Error(fmt::format("the soft device does not work: {}", soft.ToString()),
            "allow memfd_create and abstract Unix sockets (seccomp profile of the container)");
    }
  }

  Diagnosis Run() {
    if (devices_.empty()) {
      AdviseOnNoDevice();
    } else {
      ExamineDeviceFiles();
      for (const DeviceFacts& device : devices_) ExamineDevice(device);
      ExamineMemlock();
      ExamineCgroup();
    }
    ExamineHugePages();
    if (host_.io_uring_forbidden) {
      Advise("io_uring is forbidden (kernel.io_uring_disabled is 2): waiting uses epoll",
             "sysctl kernel.io_uring_disabled=0");
    }
    return std::move(result_);
  }

 private:
  void Add(Severity severity, std::string what, std::string mend) {
    result_.findings.push_back({severity, std::move(what), std::move(mend)});
  }
  void Error(std::string what, std::string mend) {
    Add(Severity::kError, std::move(what), std::move(mend));
  }
  void Warn(std::string what, std::string mend) {
    Add(Severity::kWarning, std::move(what), std::move(mend));
  }
  void Advise(std::string what, std::string mend) {
    Add(Severity::kAdvice, std::move(what), std::move(mend));
  }

  bool HasModule(const char* name) const {
    return std::find(host_.modules.begin(), host_.modules.end(), name) != host_.modules.end();
  }

  void AdviseOnNoDevice() {
    if (host_.container) {
      Advise(
          "no RDMA device is visible in this container: the soft device serves processes of one "
          "host and user through shared memory, and other hosts over TCP",
          "run the container with --device /dev/infiniband --cap-add IPC_LOCK, where the host "
          "has a device");
      return;
    }
    const std::string interface = host_.interfaces.empty() ? "eth0" : host_.interfaces.front();
    Advise(
        "there is no RDMA device: the soft device serves processes of one host and user through "
        "shared memory, and other hosts over TCP",
        HasModule("rdma_rxe")
            ? fmt::format("rdma link add rxe0 type rxe netdev {}", interface)
            : fmt::format("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {}", interface));
  }

  void ExamineDeviceFiles() {
    bool any_uverbs = false;
    for (const DeviceFile& file : host_.device_files) {
      any_uverbs = any_uverbs || file.path.find("uverbs") != std::string::npos;
      if (!file.usable) {
        Error(fmt::format("{} is not readable and writable for this user", file.path),
              fmt::format("chmod 0666 {0}   (or a udev rule; in a container: --device {0})",
                          file.path));
      }
    }
    if (any_uverbs) return;
    Error(
        "there are RDMA devices, but no /dev/infiniband/uverbs* to open them by",
        host_.container ? "run the container with --device /dev/infiniband" : "modprobe ib_uverbs");
  }

  void ExamineDevice(const DeviceFacts& device) {
    if (absl::IsUnimplemented(device.opened)) {
      // Nothing that the machine lacks: others of its devices may do.
      Warn(fmt::format("{} cannot be used: {}", device.name, std::string(device.opened.message())),
           "nothing: `auto` passes it over");
      return;
    }
    if (!device.opened.ok()) {
      Error(
          fmt::format("{} cannot be opened: {}", device.name, std::string(device.opened.message())),
          "apt-get install ibverbs-providers   (the driver library), then see /dev/infiniband");
    }
    const bool iwarp = device.node_type == "RNIC";
    const bool connects = !iwarp || HasRdmaCm();
    if (!connects) {
      Error(fmt::format("{} is iWARP, which connects by rdma_cm alone, and /dev/infiniband/rdma_cm "
                        "is not there",
                        device.name),
            "modprobe rdma_ucm");
    }
    bool usable = false;
    for (const PortFacts& port : device.ports) usable = ExaminePort(device, port) || usable;
    if (!device.opened.ok()) return;
    if (!device.capabilities.srq) {
      Warn(fmt::format("{} has no shared receive queues: each link has {} receives of its own, and "
                       "an executor serves {} links by default",
                       device.name, LinkLimits().receives_per_link,
                       LinkLimits().srq_depth / LinkLimits().receives_per_link),
           "raise LinkLimits::srq_depth for more links");
    }
    result_.rdma_works = result_.rdma_works || (usable && connects);
  }

  bool HasRdmaCm() const {
    return std::any_of(
        host_.device_files.begin(), host_.device_files.end(),
        [](const DeviceFile& file) { return file.path == "/dev/infiniband/rdma_cm"; });
  }

  // True when the port can carry a link.
  bool ExaminePort(const DeviceFacts& device, const PortFacts& port) {
    const bool ethernet = port.link_layer == "Ethernet";
    const std::string name = fmt::format("{} port {}", device.name, port.port);
    if (port.state != "ACTIVE") {
      Error(fmt::format("{} is {}", name, port.state.empty() ? "in no known state" : port.state),
            ethernet ? fmt::format("ip link set {} up   (and look at the cable)", InterfaceOf(port))
                     : "start a subnet manager: systemctl start opensm");
      return false;
    }
    if (!ethernet) {
      if (port.lid != 0) return true;
      Error(fmt::format("{} has no LID", name), "start a subnet manager: systemctl start opensm");
      return false;
    }
    return ExamineGids(device, port, name);
  }

  bool ExamineGids(const DeviceFacts& device, const PortFacts& port, const std::string& name) {
    if (port.gids.empty()) {
      Error(fmt::format("{} has no GID: its interface has no address", name),
            fmt::format("ip address add ADDRESS/PREFIX dev {}", InterfaceOf(port)));
      return false;
    }
    const bool iwarp = device.node_type == "RNIC";
    const bool v2 = std::any_of(port.gids.begin(), port.gids.end(),
                                [](const GidFacts& gid) { return gid.type == "RoCE v2"; });
    if (!iwarp && !v2) {
      Warn(fmt::format("{} has RoCE v1 alone, which no router forwards", name),
           "set RoCE v2 as the default: see cma_roce_mode(8) of your card's vendor");
    }
    return true;
  }

  static std::string InterfaceOf(const PortFacts& port) {
    for (const GidFacts& gid : port.gids) {
      if (!gid.interface.empty()) return gid.interface;
    }
    return "INTERFACE";
  }

  // Whether the limit binds some device: Soft-iWARP counts what root pins, too.
  bool MemlockBinds() const {
    return !host_.may_lock_any_memory ||
           std::any_of(devices_.begin(), devices_.end(), [](const DeviceFacts& device) {
             return device.capabilities.root_pins == internal::RootPins::kWithinTheLimit;
           });
  }

  void ExamineMemlock() {
    if (host_.memlock_bytes == kUnlimited || !MemlockBinds()) return;
    const uint64_t small = SmallMemoryPerExecutor();
    const uint64_t normal = MemoryPerExecutor();
    if (host_.memlock_bytes >= 8 * normal) return;
    const std::string limit = fmt::format("RLIMIT_MEMLOCK is {} KiB", host_.memlock_bytes >> 10);
    const std::string mend =
        host_.memlock_hard_bytes == kUnlimited
            ? "ulimit -l unlimited   (for good: LimitMEMLOCK=infinity in the unit, or '* - memlock "
              "unlimited' in /etc/security/limits.conf)"
            : "'* - memlock unlimited' in /etc/security/limits.conf and a new login; in a "
              "container: --ulimit memlock=-1 or --cap-add IPC_LOCK (Kubernetes: "
              "securityContext.capabilities)";
    if (host_.memlock_bytes < small) {
      result_.rdma_works = false;
      Error(fmt::format("{}; each executor pins {} KiB even with LinkLimits::Small()", limit,
                        small >> 10),
            mend);
    } else if (host_.memlock_bytes < normal) {
      Warn(fmt::format("{}; each executor pins {} KiB with default limits: programs run with "
                       "LinkLimits::Small(), which takes few links and payloads of 1 MiB",
                       limit, normal >> 10),
           mend);
    } else {
      Warn(fmt::format("{}; each executor pins {} KiB with default limits, and payloads come on "
                       "top",
                       limit, normal >> 10),
           mend);
    }
  }

  void ExamineCgroup() {
    for (const std::string& limit : host_.cgroup_rdma) {
      Warn(fmt::format("the cgroup limits RDMA objects: {}", limit),
           "echo DEVICE hca_handle=max hca_object=max > rdma.max   (in the cgroup's directory)");
    }
    const uint64_t need = 2 * MemoryPerExecutor();
    if (host_.cgroup_memory_bytes.has_value() && *host_.cgroup_memory_bytes < need) {
      Warn(fmt::format("the cgroup's memory.max is {} KiB, less than the {} KiB that two executors "
                       "register",
                       *host_.cgroup_memory_bytes >> 10, need >> 10),
           "raise the memory limit of the container");
    }
  }

  void ExamineHugePages() {
    const bool reserved = std::any_of(host_.huge_pages.begin(), host_.huge_pages.end(),
                                      [](const HugePages& pool) { return pool.total > 0; });
    if (reserved || host_.huge_pages.empty()) return;
    Advise(
        "no hugepages are reserved: large arenas take more entries of the card's and the CPU's "
        "translation tables",
        "sysctl vm.nr_hugepages=512");
  }

  const HostFacts& host_;
  const std::vector<DeviceFacts>& devices_;
  Diagnosis result_;
};

}  // namespace

// By a NIC's arithmetic: devices of the kernel pin a sixth less.
uint64_t MemoryPerExecutor() {
  return internal::PinnedMemoryOf(LinkLimits(), /*emulated=*/false).at_start;
}

uint64_t SmallMemoryPerExecutor() {
  return internal::PinnedMemoryOf(LinkLimits::Small(), /*emulated=*/false).at_start;
}

Diagnosis Examine(const HostFacts& host, const std::vector<DeviceFacts>& devices,
                  const absl::Status& soft) {
  return Examination(host, devices, soft).Run();
}

}  // namespace verbena::doctor
