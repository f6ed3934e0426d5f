#include "verbena/transport/verbs/port.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

// A device has at most this many GIDs per port in today's kernels (256 on mlx5).
constexpr int kMaxGids = 1024;

GidType TypeOf(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::kRoceV2;
    default:
      return GidType::kInfiniBand;
  }
}

PortLink LinkOf(const ibv_context* context, const ibv_port_attr& port) {
  if (context->device->transport_type == IBV_TRANSPORT_IWARP) return PortLink::kIwarp;
  return port.link_layer == IBV_LINK_LAYER_ETHERNET ? PortLink::kEthernet : PortLink::kInfiniBand;
}

void AppendPorts(ibv_context* context, std::vector<PortInfo>& ports) {
  ibv_device_attr attributes{};
  if (ibv_query_device(context, &attributes) != 0) return;
  const size_t first = ports.size();
  for (int port = 1; port <= attributes.phys_port_cnt; ++port) {
    ibv_port_attr state{};
    if (ibv_query_port(context, static_cast<uint8_t>(port), &state) != 0) continue;
    ports.push_back({.device = ibv_get_device_name(context->device),
                     .port = static_cast<uint8_t>(port),
                     .link = LinkOf(context, state),
                     .active = state.state == IBV_PORT_ACTIVE});
  }
  const std::vector<IpAddress> here = GidsOfInterfaces();
  std::vector<ibv_gid_entry> entries(kMaxGids);
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  VERBENA_CHECK(count <= kMaxGids) << count << " GIDs";
  for (ssize_t i = 0; i < count; ++i) {
    for (size_t at = first; at < ports.size(); ++at) {
      if (ports[at].port != entries[i].port_num) continue;
      ports[at].gids.push_back(ReadGid(entries[i], ports[at].link, here));
    }
  }
}

// A name's parts: `device` and `port`, or any port with `gid`.
struct Wish {
  std::string device = {};
  std::optional<int> port = {};
  GidWish gid = {};
};

std::optional<ibv_gid> ParseAddress(const std::string& text) {
  const std::optional<IpAddress> ip = ParseIp(text);
  if (!ip.has_value()) return std::nullopt;
  ibv_gid gid{};
  std::ranges::copy(*ip, gid.raw);
  return gid;
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

// The highest index that an address handle can name (ibv_global_route::sgid_index is a byte).
constexpr int kMaxGidIndex = 255;

bool Matches(const GidInfo& gid, const GidWish& wish) {
  if (!wish.netdev.empty() && gid.netdev != wish.netdev) return false;
  if (wish.index && gid.index != *wish.index) return false;
  return !wish.address || std::memcmp(gid.gid.raw, wish.address->raw, sizeof(gid.gid.raw)) == 0;
}

bool IsUsable(const GidInfo& gid, const GidWish& wish) {
  return Matches(gid, wish) && gid.index <= kMaxGidIndex && !gid.other_namespace;
}

// The other GIDs by which the port may be reached if `chosen` may be. InfiniBand's are no addresses
// that a host could be connected by.
std::vector<int> Alike(const PortInfo& port, const GidInfo& chosen, const GidWish& wish) {
  std::vector<int> alike;
  if (port.link != PortLink::kEthernet) return alike;
  for (const GidInfo& gid : port.gids) {
    if (gid.index != chosen.index && gid.type == chosen.type && IsUsable(gid, wish)) {
      alike.push_back(gid.index);
    }
  }
  return alike;
}

// Smaller is better.
auto Rank(const GidInfo& gid) {
  const IpAddress ip = std::to_array(gid.gid.raw);
  // InfiniBand's default subnet prefix is link-local.
  return std::tuple(gid.type == GidType::kRoceV1, IsLinkLocal(ip), !IsIpv4(ip), gid.index);
}

std::string Describe(const GidWish& wish) {
  std::string text;
  if (wish.index) text += fmt::format(" at index {}", *wish.index);
  if (!wish.netdev.empty()) text += " of " + wish.netdev;
  if (wish.address) text += " with address " + FormatGid(*wish.address);
  return text;
}

std::string ListGids(const PortInfo& port) {
  std::string text;
  for (const GidInfo& gid : port.gids) {
    text += fmt::format("{}{}: {} {}{}", text.empty() ? "" : ", ", gid.index, FormatGid(gid.gid),
                        GidTypeName(gid.type),
                        gid.other_namespace ? " in another network namespace" : "");
  }
  return text.empty() ? "none" : text;
}

}  // namespace

const char* GidTypeName(GidType type) {
  switch (type) {
    case GidType::kInfiniBand:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
    case GidType::kIwarp:
      return "iWARP";
  }
  return "unknown";
}

std::vector<PortInfo> ListPorts() {
  std::vector<PortInfo> ports;
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (devices == nullptr) return ports;
  for (int i = 0; i < count; ++i) {
    ibv_context* context = ibv_open_device(devices[i]);
    if (context == nullptr) continue;
    AppendPorts(context, ports);
    ibv_close_device(context);
  }
  ibv_free_device_list(devices);
  return ports;
}

std::vector<PortInfo> PortsOf(ibv_context* context) {
  std::vector<PortInfo> ports;
  AppendPorts(context, ports);
  return ports;
}

IpAddress DefaultGid(const std::array<uint8_t, 6>& hardware) {
  const auto& h = hardware;
  return {0xfe, 0x80, 0,    0,    0,    0,    0,   0, static_cast<uint8_t>(h[0] ^ 2),
          h[1], h[2], 0xff, 0xfe, h[3], h[4], h[5]};
}

std::vector<IpAddress> GidsOfInterfaces() {
  std::vector<IpAddress> gids = HostAddresses(/*reachable=*/false);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return gids;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_PACKET) continue;
    const auto& link = reinterpret_cast<const sockaddr_ll&>(*each->ifa_addr);
    std::array<uint8_t, 6> hardware;
    if ((each->ifa_flags & IFF_LOOPBACK) != 0 || link.sll_halen != sizeof(hardware)) continue;
    std::memcpy(hardware.data(), link.sll_addr, sizeof(hardware));
    gids.push_back(DefaultGid(hardware));
  }
  freeifaddrs(all);
  return gids;
}

GidInfo ReadGid(const ibv_gid_entry& entry, PortLink link, const std::vector<IpAddress>& here) {
  GidInfo info;
  info.index = static_cast<int>(entry.gid_index);
  info.gid = entry.gid;
  info.type = link == PortLink::kIwarp ? GidType::kIwarp : TypeOf(entry.gid_type);
  char name[IF_NAMESIZE];
  if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, name) != nullptr) {
    info.netdev = name;
  }
  if (link != PortLink::kEthernet) return info;
  // Without a list of addresses the interface must do.
  const bool has_address =
      here.empty() || std::ranges::find(here, std::to_array(entry.gid.raw)) != here.end();
  info.other_namespace = info.netdev.empty() || !has_address;
  if (info.other_namespace) info.netdev.clear();
  return info;
}

std::string FormatGid(const ibv_gid& gid) { return FormatIp(std::to_array(gid.raw)); }

std::string DescribePort(const PortInfo& port) {
  std::string text =
      fmt::format("{} port {} ({}", port.device, port.port, port.active ? "active" : "down");
  std::string netdev;
  for (const GidInfo& gid : port.gids) {
    if (gid.other_namespace) continue;
    if (gid.netdev != netdev) text += " " + gid.netdev;
    netdev = gid.netdev;
    text += " " + FormatGid(gid.gid);
  }
  return text + ")";
}

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
    choice = {port.device, port.port, gid->index, gid->type == GidType::kRoceV1,
              Alike(port, *gid, wish.gid)};
  }
  if (!choice) return why;
  return *choice;
}

absl::StatusOr<GidInfo> ChooseGid(const PortInfo& port, const GidWish& wish) {
  const GidInfo* best = nullptr;
  const GidInfo* elsewhere = nullptr;
  for (const GidInfo& gid : port.gids) {
    if (!Matches(gid, wish) || gid.index > kMaxGidIndex) continue;
    if (gid.other_namespace) {
      elsewhere = &gid;
    } else if (best == nullptr || Rank(gid) < Rank(*best)) {
      best = &gid;
    }
  }
  if (best != nullptr) {
    VERBENA_CHECK(best->index >= 0 && best->index <= kMaxGidIndex) << best->index;
    return *best;
  }
  if (elsewhere != nullptr) {
    return absl::FailedPreconditionError(fmt::format(
        "{} port {}: GID {} ({}) belongs to an interface of another network namespace; move that "
        "interface here (ip link set NETDEV netns …), or run there",
        port.device, port.port, elsewhere->index, FormatGid(elsewhere->gid)));
  }
  const std::string message = fmt::format("{} port {} has no GID{}; its GIDs: {}", port.device,
                                          port.port, Describe(wish), ListGids(port));
  return wish.index ? absl::OutOfRangeError(message) : absl::NotFoundError(message);
}

}  // namespace verbena::internal
