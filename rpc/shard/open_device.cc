#include "verbena/rpc/shard/open_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/shard/soft_name.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/connect/rdma_cm_address.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/port_choice.h"
#include "verbena/transport/verbs/port_info.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::internal {
namespace {

constexpr std::string_view kRdmaPrefix = "rdma:";

using Devices = std::vector<std::unique_ptr<Device>>;

absl::StatusOr<std::unique_ptr<Device>> OpenRdma(const std::string& name) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<RdmaDevice> device, RdmaDevice::Open(name));
  const DevicePort port = device->default_port();
  Log(LogLevel::kInfo,
      fmt::format("links run over {}, port {}, GID {}", device->name(), port.port, port.gid_index));
  return std::unique_ptr<Device>(std::move(device));
}

// The log names every port that the process listens on.
absl::StatusOr<std::unique_ptr<Device>> OpenTcp(const TcpWireOptions& tcp) {
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<SoftDevice> device,
      SoftDevice::Create({.name = kTcpDeviceName, .shared_memory = false, .tcp = tcp}));
  VERBENA_ASSIGN_OR_RETURN(const ibv_gid gid, device->QueryGid(1, 0));
  IpAddress address{};
  std::memcpy(address.data(), gid.raw, address.size());
  Log(LogLevel::kInfo,
      fmt::format("links over TCP are taken at port {} of {}; peers are told {}",
                  device->tcp_port(), tcp.address.empty() ? "every address" : tcp.address,
                  FormatIp(address)));
  return std::unique_ptr<Device>(std::move(device));
}

absl::StatusOr<Devices> OpenSoft(const std::string& name) {
  VERBENA_ASSIGN_OR_RETURN(const SoftName parts, ParseSoftName(name));
  Devices devices;
  if (parts.shared_memory) {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<SoftDevice> device, SoftDevice::Create({}));
    devices.push_back(std::move(device));
  }
  if (parts.tcp.has_value()) {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenTcp(*parts.tcp));
    devices.push_back(std::move(device));
  }
  return devices;
}

absl::StatusOr<Devices> Only(absl::StatusOr<std::unique_ptr<Device>> device) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Device> only, std::move(device));
  Devices devices;
  devices.push_back(std::move(only));
  return devices;
}

// Adds the first active port of that kind. If it cannot be opened, this logs why and adds none.
void AddRdma(PortLink link, const std::vector<PortInfo>& all, Devices& devices) {
  std::vector<PortInfo> ports;
  std::copy_if(all.begin(), all.end(), std::back_inserter(ports),
               [link](const PortInfo& port) { return port.link == link; });
  if (ports.empty()) return;
  absl::StatusOr<PortChoice> choice = ChoosePort(ports, "");
  absl::Status failure = choice.status();
  if (choice.ok()) {
    absl::StatusOr<std::unique_ptr<Device>> device =
        OpenRdma(fmt::format("{}:{}", choice->device, choice->port));
    failure = device.status();
    if (device.ok()) devices.push_back(*std::move(device));
  }
  if (!failure.ok()) {
    Log(LogLevel::kInfo, fmt::format("an RDMA device is not used: {}", failure.ToString()));
  }
}

absl::StatusOr<Devices> OpenAll() {
  VERBENA_ASSIGN_OR_RETURN(Devices devices, OpenSoft("soft"));
  const std::vector<PortInfo> ports = ListPorts();
  AddRdma(PortLink::kInfiniBand, ports, devices);
  AddRdma(PortLink::kEthernet, ports, devices);
  AddRdma(PortLink::kIwarp, ports, devices);
  return devices;
}

// "auto", or what a user has said.
std::string Wanted(const std::string& name) {
  if (!name.empty() && name != "auto") return name;
  const char* set = std::getenv("VERBENA_DEVICE");
  const std::string from_environment = set == nullptr ? "" : set;
  return from_environment.empty() ? "auto" : from_environment;
}

absl::StatusOr<Devices> OpenNamed(const std::string& name) {
  if (name == "auto") return OpenAll();
  if (IsSoftName(name)) return OpenSoft(name);
  if (name == "rdma") return Only(OpenRdma(""));
  if (name.starts_with(kRdmaPrefix)) return Only(OpenRdma(name.substr(kRdmaPrefix.size())));
  return Only(OpenRdma(name));
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const std::string& given) {
  const std::string name = Wanted(given);
  absl::StatusOr<Devices> devices = OpenNamed(name);
  if (devices.ok()) return devices;
  std::string message(devices.status().message());
  if (absl::IsNotFound(devices.status()) && name != "auto" && !IsSoftName(name)) {
    message += "; each host has the software devices soft and soft:tcp";
  }
  if (IsAutomatic(given) || name == given) return absl::Status(devices.status().code(), message);
  return absl::Status(devices.status().code(), "VERBENA_DEVICE: " + message);
}

bool IsAutomatic(const std::string& name) { return Wanted(name) == "auto"; }

std::string NameToReopen(const std::string& name, const Device& device) {
  std::string wanted = Wanted(name);
  if (device.kind() == DeviceKind::kSoft) {
    // OpenDevices() gives no other class of that kind.
    if (!static_cast<const SoftDevice&>(device).tcp()) return "soft";
    if (!IsSoftName(wanted)) return TcpName({});
    const absl::StatusOr<SoftName> parts = ParseSoftName(wanted);
    if (!parts.ok() || !parts->tcp.has_value()) return TcpName({});
    return TcpName(*parts->tcp);
  }
  if (wanted != "auto" && wanted != "rdma" && wanted != kRdmaPrefix) return wanted;
  return fmt::format("{}{}:{}", kRdmaPrefix, device.name(), device.default_port().port);
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& name) {
  VERBENA_ASSIGN_OR_RETURN(Devices devices, OpenDevices(name));
  const auto rdma = std::find_if(devices.begin(), devices.end(), [](const auto& device) {
    return device->kind() == DeviceKind::kRdma;
  });
  return std::move(rdma == devices.end() ? devices.front() : *rdma);
}

}  // namespace verbena::internal
