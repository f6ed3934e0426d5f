#include "tools/verbena/device_facts.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/verbena/small_files.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::doctor {
namespace {

// sysfs writes "4: ACTIVE" and "1: CA".
std::string AfterColon(const std::string& text) {
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

bool IsZero(const std::string& gid) { return gid.find_first_not_of("0:") == std::string::npos; }

std::string AsAddress(const std::string& gid) {
  const std::optional<internal::IpAddress> ip = internal::ParseIp(gid);
  return ip.has_value() ? internal::FormatIp(*ip) : "";
}

std::vector<GidFacts> ReadGids(const std::string& port) {
  std::vector<GidFacts> gids;
  for (const std::string& name : Names(port + "gids")) {
    GidFacts gid;
    gid.index = std::atoi(name.c_str());
    gid.gid = ReadSmallFile(absl::StrCat(port, "gids/", name));
    if (gid.gid.empty() || IsZero(gid.gid)) continue;
    gid.address = AsAddress(gid.gid);
    gid.type = ReadSmallFile(absl::StrCat(port, "gid_attrs/types/", name));
    gid.interface = ReadSmallFile(absl::StrCat(port, "gid_attrs/ndevs/", name));
    gids.push_back(std::move(gid));
  }
  std::sort(gids.begin(), gids.end(),
            [](const GidFacts& a, const GidFacts& b) { return a.index < b.index; });
  return gids;
}

PortFacts ReadPort(const std::string& directory, const std::string& name) {
  PortFacts port;
  port.port = std::atoi(name.c_str());
  port.state = AfterColon(ReadSmallFile(directory + "state"));
  port.link_layer = ReadSmallFile(directory + "link_layer");
  port.rate = ReadSmallFile(directory + "rate");
  port.lid = ReadNumber(directory + "lid").value_or(0);
  port.gids = ReadGids(directory);
  return port;
}

}  // namespace

std::vector<DeviceFacts> ReadDeviceFacts(const std::string& root) {
  const std::string top = root + (absl::EndsWith(root, "/") ? "" : "/") + "sys/class/infiniband/";
  std::vector<DeviceFacts> devices;
  for (const std::string& name : Names(top)) {
    DeviceFacts device;
    device.name = name;
    device.node_type = AfterColon(ReadSmallFile(top + name + "/node_type"));
    device.firmware = ReadSmallFile(top + name + "/fw_ver");
    const std::string numa = ReadSmallFile(top + name + "/device/numa_node");
    if (!numa.empty()) device.numa_node = std::atoi(numa.c_str());
    for (const std::string& port : Names(top + name + "/ports")) {
      device.ports.push_back(ReadPort(absl::StrCat(top, name, "/ports/", port, "/"), port));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

void OpenAndProbe(DeviceFacts& device) {
  absl::StatusOr<std::unique_ptr<internal::RdmaDevice>> opened =
      internal::RdmaDevice::Open(device.name);
  device.opened = opened.status();
  if (!opened.ok()) return;
  device.attributes = (*opened)->attributes();
  device.capabilities = (*opened)->capabilities();
  for (PortFacts& port : device.ports) {
    absl::StatusOr<ibv_port_attr> attributes =
        (*opened)->QueryPort(static_cast<uint8_t>(port.port));
    if (attributes.ok()) port.mtu_bytes = 128 << attributes->active_mtu;
  }
}

}  // namespace verbena::doctor
