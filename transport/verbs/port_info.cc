#include "verbena/transport/verbs/port_info.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <cstring>

#include "fmt/format.h"

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

// The kernel lists what belongs to other network namespaces without an interface.
GidInfo ReadGid(const ibv_gid_entry& entry, PortLink link) {
  GidInfo info;
  info.index = static_cast<int>(entry.gid_index);
  info.gid = entry.gid;
  info.type = link == PortLink::kIwarp ? GidType::kIwarp : TypeOf(entry.gid_type);
  char name[IF_NAMESIZE];
  if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, name) != nullptr) {
    info.netdev = name;
  } else {
    info.other_namespace = link == PortLink::kEthernet;
  }
  return info;
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
  std::vector<ibv_gid_entry> entries(kMaxGids);
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  for (ssize_t i = 0; i < count; ++i) {
    for (size_t at = first; at < ports.size(); ++at) {
      if (ports[at].port != entries[i].port_num) continue;
      ports[at].gids.push_back(ReadGid(entries[i], ports[at].link));
    }
  }
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

std::string FormatGid(const ibv_gid& gid) {
  in6_addr address;
  std::memcpy(&address, gid.raw, sizeof(address));
  char text[INET6_ADDRSTRLEN];
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, &address, text, sizeof(text));
  }
  return text;
}

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

}  // namespace verbena::internal
