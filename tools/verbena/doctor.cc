#include "tools/verbena/doctor.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "tools/verbena/container.h"
#include "tools/verbena/container_facts.h"
#include "tools/verbena/sharing_facts.h"
#include "tools/verbena/wires.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::doctor {
namespace {

std::string Size(uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  if (bytes >= 1u << 20) return fmt::format("{} MiB", bytes >> 20);
  return fmt::format("{} KiB", bytes >> 10);
}

std::string OrNone(const std::string& text) { return text.empty() ? "none" : text; }

void DescribeHost(const HostFacts& host, std::string& out) {
  out += fmt::format("host\n  kernel            {}\n", host.kernel);
  out += fmt::format("  modules           {}\n", OrNone(absl::StrJoin(host.modules, " ")));
  std::vector<std::string> files;
  files.reserve(host.device_files.size());
  for (const DeviceFile& file : host.device_files) {
    files.push_back(file.path + (file.usable ? "" : " (no access)"));
  }
  out += fmt::format("  device files      {}\n", OrNone(absl::StrJoin(files, " ")));
  out += fmt::format("  memlock           {} (hard {}){}\n", Size(host.memlock_bytes),
                     Size(host.memlock_hard_bytes),
                     host.may_lock_any_memory ? ", not enforced: CAP_IPC_LOCK" : "");
  std::vector<std::string> pools;
  pools.reserve(host.huge_pages.size());
  for (const HugePages& pool : host.huge_pages) {
    pools.push_back(
        fmt::format("{} of {} free ({})", pool.free, pool.total, Size(pool.page_kib << 10)));
  }
  out += fmt::format("  hugepages         {}; transparent: {}\n",
                     OrNone(absl::StrJoin(pools, ", ")), OrNone(host.transparent_huge_pages));
  out += fmt::format("  container         {}\n", host.container ? "yes" : "no");
  out +=
      fmt::format("  cgroup            memory {}; rdma {}\n",
                  Size(host.cgroup_memory_bytes.value_or(kUnlimited)),
                  host.cgroup_rdma.empty() ? "unlimited" : absl::StrJoin(host.cgroup_rdma, ", "));
  out += fmt::format("  io_uring          {}\n", host.io_uring_forbidden ? "forbidden" : "allowed");
}

void DescribePort(const PortFacts& port, std::string& out) {
  out += fmt::format("  port {}            {} {} {}", port.port, OrNone(port.link_layer),
                     port.state, port.rate);
  if (port.mtu_bytes != 0) out += fmt::format(", MTU {}", port.mtu_bytes);
  if (port.link_layer == "InfiniBand") out += fmt::format(", LID {:#x}", port.lid);
  out += "\n";
  for (const GidFacts& gid : port.gids) {
    out += fmt::format("    GID {:<3}         {} ({}) {} {}\n", gid.index, gid.gid, gid.address,
                       gid.type, gid.interface);
  }
}

void DescribeLimits(const DeviceFacts& device, std::string& out) {
  const ibv_device_attr& limits = *device.attributes;
  const internal::DeviceCapabilities& can = device.capabilities;
  out += fmt::format(
      "  limits            QPs {}, WRs a QP {}, CQ entries {}, SRQ WRs {}, MRs {}, "
      "READs in flight {}, inline {} bytes\n",
      limits.max_qp, limits.max_qp_wr, limits.max_cqe, limits.max_srq_wr, limits.max_mr,
      limits.max_qp_rd_atom, can.max_inline_bytes);
  const std::pair<const char*, bool> features[] = {
      {"SRQ", can.srq},
      {"SRQ limit event", can.srq_limit_event},
      {"LAST_WQE event", can.last_wqe_event},
      {"SEND with immediate", can.send_with_immediate},
      {"WRITE with immediate", can.write_with_immediate},
      {"atomics", can.atomics},
      {"memory windows", can.memory_windows}};
  std::vector<std::string> has, lacks;
  for (const auto& [name, there] : features) (there ? has : lacks).emplace_back(name);
  out += fmt::format("  features          {}\n", OrNone(absl::StrJoin(has, ", ")));
  out += fmt::format("  not there         {}\n", OrNone(absl::StrJoin(lacks, ", ")));
}

// Tries what every program needs of the soft device: opening it, and registering some memory.
absl::Status TrySoftDevice() {
  absl::StatusOr<std::unique_ptr<internal::SoftDevice>> device = internal::SoftDevice::Create({});
  if (!device.ok()) return device.status();
  absl::StatusOr<ibv_pd*> pd = (*device)->AllocPd();
  if (!pd.ok()) return pd.status();
  const internal::PdHandle owned(**device, *pd);
  char memory[4096];
  absl::StatusOr<ibv_mr*> mr =
      (*device)->RegMr(owned.get(), memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
  if (!mr.ok()) return mr.status();
  return (*device)->DeregMr(*mr);
}

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kAdvice:
      return "advice";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "";
}

}  // namespace

std::string Describe(const HostFacts& host, const std::vector<DeviceFacts>& devices) {
  std::string out;
  DescribeHost(host, out);
  if (devices.empty()) out += "no RDMA devices\n";
  for (const DeviceFacts& device : devices) {
    out += fmt::format("device {}\n  type              {}, firmware {}, NUMA node {}\n",
                       device.name, device.node_type, OrNone(device.firmware), device.numa_node);
    for (const PortFacts& port : device.ports) DescribePort(port, out);
    if (device.attributes.has_value()) DescribeLimits(device, out);
  }
  return out;
}

std::string Describe(const Diagnosis& diagnosis) {
  std::string out;
  for (const Finding& finding : diagnosis.findings) {
    out += fmt::format("{}: {}\n", SeverityName(finding.severity), finding.what);
    if (!finding.mend.empty()) out += fmt::format("  mend: {}\n", finding.mend);
  }
  if (diagnosis.rdma_works) {
    out += "RDMA works.\n";
  } else if (diagnosis.rdma_present) {
    out += "RDMA does not work.\n";
  } else {
    out += diagnosis.soft_works ? "The soft device works; there is no RDMA device.\n"
                                : "Neither RDMA nor the soft device works.\n";
  }
  return out;
}

int RunDoctor(bool container) {
  // Before there are other threads.
  const SharingFacts sharing = ReadSharingFacts();
  const HostFacts host = ReadHostFacts();
  std::vector<DeviceFacts> devices = ReadDeviceFacts("/");
  for (DeviceFacts& device : devices) OpenAndProbe(device);
  Diagnosis diagnosis = Examine(host, devices, TrySoftDevice());
  std::string surroundings;
  if (container) {
    const ContainerFacts facts = ReadContainerFacts();
    surroundings = DescribeContainer(facts, host);
    for (Finding& finding : ExamineContainer(facts, host)) {
      diagnosis.findings.push_back(std::move(finding));
    }
  }
  fmt::print("{}{}{}{}", Describe(host, devices), DescribeWires(sharing), surroundings,
             Describe(diagnosis));
  return diagnosis.ExitStatus();
}

}  // namespace verbena::doctor
