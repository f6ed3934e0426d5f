#include "verbena/transport/verbs/port_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "fmt/format.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/verbs/gid_choice.h"

namespace verbena::internal {
namespace {

// A name's parts: `device` and `port`, or any port with `gid`.
struct Wish {
  std::string device = {};
  std::optional<int> port = {};
  GidWish gid = {};
};

std::optional<ibv_gid> ParseAddress(const std::string& text) {
  ibv_gid gid{};
  if (inet_pton(AF_INET6, text.c_str(), gid.raw) == 1) return gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  if (inet_pton(AF_INET, text.c_str(), gid.raw + 12) == 1) return gid;
  return std::nullopt;
}

std::optional<int> ParseNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool HasDevice(const std::vector<PortInfo>& ports, const std::string& name) {
  return std::any_of(ports.begin(), ports.end(),
                     [&name](const PortInfo& port) { return port.device == name; });
}

bool HasNetdev(const PortInfo& port, const std::string& name) {
  return std::any_of(port.gids.begin(), port.gids.end(),
                     [&name](const GidInfo& gid) { return gid.netdev == name; });
}

// "device:port" or "device:port:gid"; nullopt when `name` is not of that shape.
std::optional<Wish> ParsePortOfDevice(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return std::nullopt;
  Wish wish{.device = name.substr(0, colon)};
  const std::string_view rest = std::string_view(name).substr(colon + 1);
  const size_t second = rest.find(':');
  wish.port = ParseNumber(rest.substr(0, second));
  if (!wish.port) return std::nullopt;
  if (second != std::string_view::npos) {
    wish.gid.index = ParseNumber(rest.substr(second + 1));
    if (!wish.gid.index) return std::nullopt;
  }
  return wish;
}

absl::Status NoSuchDevice(const std::vector<PortInfo>& ports, const std::string& name) {
  std::string existing;
  for (const PortInfo& port : ports) {
    existing += (existing.empty() ? "" : ", ") + DescribePort(port);
  }
  if (existing.empty()) existing = "none";
  return absl::NotFoundError(
      name.empty() ? fmt::format("no RDMA port is usable; this host has: {}", existing)
                   : fmt::format("no RDMA device, interface or address \"{}\"; this host has: {}",
                                 name, existing));
}

absl::Status PortDown(const PortInfo& port) {
  const std::string netdev = port.gids.empty() ? "" : port.gids.front().netdev;
  return absl::UnavailableError(
      fmt::format("port {} of {} is not active; bring it up: ip link set dev {} up", port.port,
                  port.device, netdev.empty() ? "NETDEV" : netdev));
}

absl::StatusOr<Wish> Parse(const std::vector<PortInfo>& ports, const std::string& name) {
  if (name.empty() || HasDevice(ports, name)) return Wish{.device = name};
  if (const auto address = ParseAddress(name)) return Wish{.gid = {.address = address}};
  if (std::optional<Wish> wish = ParsePortOfDevice(name); wish && HasDevice(ports, wish->device)) {
    return *wish;
  }
  for (const PortInfo& port : ports) {
    if (HasNetdev(port, name)) return Wish{.gid = {.netdev = name}};
  }
  return NoSuchDevice(ports, name);
}

bool Fits(const PortInfo& port, const Wish& wish) {
  return (wish.device.empty() || port.device == wish.device) &&
         (!wish.port || port.port == *wish.port);
}

}  // namespace

absl::StatusOr<PortChoice> ChoosePort(const std::vector<PortInfo>& ports, const std::string& name) {
  VERBENA_ASSIGN_OR_RETURN(Wish wish, Parse(ports, name));
  const PortInfo* best = nullptr;
  std::optional<PortChoice> choice;
  absl::Status why = NoSuchDevice(ports, name);
  for (const PortInfo& port : ports) {
    if (!Fits(port, wish)) continue;
    absl::StatusOr<GidInfo> gid = ChooseGid(port, wish.gid);
    if (!port.active || !gid.ok()) {
      // The reason is reported only for a port that was meant: the name has its device, or it has
      // the GID that was wanted.
      const bool meant = !wish.device.empty() || !absl::IsNotFound(gid.status());
      if (meant) why = port.active ? gid.status() : PortDown(port);
      continue;
    }
    const bool better =
        best == nullptr || (best->link == PortLink::kIwarp && port.link != PortLink::kIwarp);
    if (!better) continue;
    best = &port;
    choice = {port.device, port.port, gid->index, gid->type == GidType::kRoceV1};
  }
  if (!choice) return why;
  return *choice;
}

}  // namespace verbena::internal
