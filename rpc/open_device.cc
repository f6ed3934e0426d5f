#include "verbena/rpc/open_device.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/port_choice.h"
#include "verbena/transport/verbs/port_info.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena {
namespace {

constexpr std::string_view kRdmaPrefix = "rdma:";

absl::StatusOr<std::unique_ptr<Device>> OpenSoft() {
  absl::StatusOr<std::unique_ptr<SoftDevice>> device = SoftDevice::Create({});
  if (!device.ok()) return device.status();
  return std::unique_ptr<Device>(*std::move(device));
}

absl::StatusOr<std::unique_ptr<Device>> OpenRdma(const std::string& name) {
  absl::StatusOr<std::unique_ptr<RdmaDevice>> device = RdmaDevice::Open(name);
  if (!device.ok()) return device.status();
  const DevicePort port = (*device)->default_port();
  Log(LogLevel::kInfo, fmt::format("links run over {}, port {}, GID {}", (*device)->name(),
                                   port.port, port.gid_index));
  return std::unique_ptr<Device>(*std::move(device));
}

bool IsIwarp(const Device& device) {
  for (const PortInfo& port : ListPorts()) {
    if (port.device == device.name()) return port.link == PortLink::kIwarp;
  }
  return false;
}

absl::StatusOr<std::unique_ptr<Device>> OpenBest() {
  if (RdmaDevice::List().empty()) return OpenSoft();
  absl::StatusOr<std::unique_ptr<Device>> rdma = OpenRdma("");
  if (rdma.ok() && !IsIwarp(**rdma)) return rdma;
  Log(LogLevel::kInfo, fmt::format("links run over the soft device: {}",
                                   rdma.ok() ? (*rdma)->name() + " is iWARP, which needs rdma_cm"
                                             : rdma.status().ToString()));
  return OpenSoft();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& name) {
  if (name.empty() || name == "auto") {
    const char* wanted = std::getenv("VERBENA_DEVICE");
    const std::string from_environment = wanted == nullptr ? "" : wanted;
    if (from_environment.empty() || from_environment == "auto") return OpenBest();
    return OpenDevice(from_environment);
  }
  if (name == "soft") return OpenSoft();
  if (name == "rdma") return OpenRdma("");
  if (name.starts_with(kRdmaPrefix)) return OpenRdma(name.substr(kRdmaPrefix.size()));
  return OpenRdma(name);
}

}  // namespace verbena
