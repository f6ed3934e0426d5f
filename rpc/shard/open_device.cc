#include "verbena/rpc/shard/open_device.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/rdma_cm.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/port.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::internal {
namespace {

constexpr std::string_view kRdmaPrefix = "rdma:";

using Devices = std::vector<std::unique_ptr<Device>>;

absl::StatusOr<std::unique_ptr<Device>> OpenRdma(const std::string& name) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<RdmaDevice> device, RdmaDevice::Open(name));
  const DevicePort port = device->default_port();
  VERBENA_LOG_LINE(
      kRuntime, kInfo,
      fmt::format("links run over {}, port {}, GID {}", device->name(), port.port, port.gid_index),
      {{"device", device->name()}});
  return std::unique_ptr<Device>(std::move(device));
}

// The log names every port that the process listens on.
absl::StatusOr<std::unique_ptr<Device>> OpenTcp(const TcpWireOptions& tcp) {
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<SoftDevice> device,
      SoftDevice::Create({.name = kTcpDeviceName, .shared_memory = false, .tcp = tcp}));
  VERBENA_ASSIGN_OR_RETURN(const ibv_gid gid, device->QueryGid(1, 0));
  VERBENA_LOG_LINE(
      kRuntime, kInfo,
      fmt::format("links over TCP are taken at port {} of {}; peers are told {}",
                  device->tcp_port(), tcp.address.empty() ? "every address" : tcp.address,
                  FormatIp(std::to_array(gid.raw))),
      {{"device", device->name()}});
  return std::unique_ptr<Device>(std::move(device));
}

absl::StatusOr<Devices> OpenSoft(const std::string& name) {
  VERBENA_ASSIGN_OR_RETURN(const SoftName parts, ParseSoftName(name));
  Devices devices;
  if (parts.shared_memory) {
    absl::StatusOr<std::unique_ptr<SoftDevice>> device = SoftDevice::Create({});
    if (!device.ok()) {
      return absl::Status(device.status().code(),
                          fmt::format("the device soft (soft:tcp needs no shared memory: set "
                                      "RuntimeOptions::device or VERBENA_DEVICE=soft:tcp): {}",
                                      std::string(device.status().message())));
    }
    devices.push_back(*std::move(device));
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
    VERBENA_LOG_LINE(kRuntime, kInfo,
                     fmt::format("an RDMA device is not used: {}", failure.ToString()));
  }
}

// A process that may not share memory, as under a seccomp profile without memfds, has TCP instead.
absl::StatusOr<Devices> OpenAll() {
  absl::StatusOr<std::unique_ptr<SoftDevice>> shared = SoftDevice::Create({});
  const absl::Status sharing = shared.status();
  Devices devices;
  if (sharing.ok()) devices.push_back(*std::move(shared));
  const std::vector<PortInfo> ports = ListPorts();
  AddRdma(PortLink::kInfiniBand, ports, devices);
  AddRdma(PortLink::kEthernet, ports, devices);
  AddRdma(PortLink::kIwarp, ports, devices);
  if (sharing.ok()) return devices;
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Device> tcp, OpenTcp({}));
  devices.push_back(std::move(tcp));
  VERBENA_LOG_LINE(
      kRuntime, kWarning,
      fmt::format("this process shares no memory with others of its host, and reaches them over {} "
                  "instead: {}",
                  devices.front()->name(), std::string(sharing.message())));
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

constexpr std::string_view kSoft = "soft";
constexpr std::string_view kPrefix = "soft:";
constexpr std::string_view kTcp = "tcp";
constexpr std::string_view kTcpPrefix = "tcp:";
// The environment may hold anything: a message repeats no more of it.
constexpr size_t kMaxPrintedBytes = 200;

absl::Status BadName(const std::string& name, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format(
      "there is no device \"{}\": {}; the software device is named soft, soft:tcp, soft:tcp:PORT, "
      "soft:tcp:ADDRESS:PORT (soft:tcp:[ADDRESS]:PORT for IPv6) or soft:PORT",
      absl::CHexEscape(name.substr(0, kMaxPrintedBytes)), why));
}

std::optional<uint16_t> PortOf(std::string_view digits) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return port;
}

// `rest` is what follows "soft:tcp:".
absl::StatusOr<TcpWireOptions> ParseTcp(const std::string& name, const std::string& rest) {
  if (const std::optional<uint16_t> port = PortOf(rest))
    return TcpWireOptions{.address = "", .port = *port};
  if (rest.find(':') == std::string::npos) {
    return BadName(name, "the port is not a number from 0 to 65535");
  }
  const absl::StatusOr<HostPort> parsed = ParseHostPort(rest);
  if (!parsed.ok()) return BadName(name, std::string(parsed.status().message()));
  if (!ParseIp(parsed->host).has_value()) {
    return BadName(name, fmt::format("\"{}\" is no numeric IP address", parsed->host));
  }
  return TcpWireOptions{.address = parsed->host, .port = parsed->port};
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

bool IsSoftName(const std::string& name) { return name == kSoft || name.starts_with(kPrefix); }

absl::StatusOr<SoftName> ParseSoftName(const std::string& name) {
  if (name == kSoft) return SoftName{.shared_memory = true};
  const std::string rest = name.substr(kPrefix.size());
  if (rest == kTcp) return SoftName{.tcp = TcpWireOptions{}};
  if (rest.starts_with(kTcpPrefix)) {
    VERBENA_ASSIGN_OR_RETURN(TcpWireOptions tcp, ParseTcp(name, rest.substr(kTcpPrefix.size())));
    return SoftName{.tcp = std::move(tcp)};
  }
  const std::optional<uint16_t> port = PortOf(rest);
  if (!port.has_value()) return BadName(name, "what follows \"soft:\" is neither tcp nor a port");
  return SoftName{.shared_memory = true, .tcp = TcpWireOptions{.address = "", .port = *port}};
}

std::string TcpName(const TcpWireOptions& tcp) {
  if (!tcp.address.empty())
    return fmt::format("soft:tcp:{}", FormatHostPort(tcp.address, tcp.port));
  return tcp.port == 0 ? "soft:tcp" : fmt::format("soft:tcp:{}", tcp.port);
}

}  // namespace verbena::internal
