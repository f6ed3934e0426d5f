#include "verbena/transport/connect/rdma_cm_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>

namespace verbena::internal {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::optional<IpAddress> ReadIp(const sockaddr& address) {
  IpAddress ip{};
  if (address.sa_family == AF_INET) {
    std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), ip.begin());
    std::memcpy(ip.data() + kMappedPrefix.size(),
                &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
    return ip;
  }
  if (address.sa_family != AF_INET6) return std::nullopt;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&v6)) return std::nullopt;
  std::memcpy(ip.data(), &v6, ip.size());
  return ip;
}

// IPoIB's hardware address ends with the port's GID. An iWARP port's GID begins with the hardware
// address of its interface.
bool MadeOf(const ibv_gid& gid, LinkKind kind, const std::vector<uint8_t>& hardware) {
  if (hardware.empty() || hardware.size() > 32) return false;
  if (kind == LinkKind::kIwarp) {
    return hardware.size() <= sizeof(gid.raw) &&
           std::memcmp(gid.raw, hardware.data(), hardware.size()) == 0;
  }
  if (kind != LinkKind::kInfiniBand || hardware.size() < sizeof(gid.raw)) return false;
  return std::equal(hardware.end() - sizeof(gid.raw), hardware.end(), std::begin(gid.raw));
}

}  // namespace

std::vector<HostAddress> ListAddresses() {
  std::vector<HostAddress> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  std::map<std::string, std::vector<uint8_t>> hardware;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    if (each->ifa_addr->sa_family == AF_PACKET) {
      const auto& link = reinterpret_cast<const sockaddr_ll&>(*each->ifa_addr);
      // glibc leaves room for as long an address as there is, IPoIB's 20 bytes among them.
      const uint8_t* bytes = link.sll_addr;
      hardware[each->ifa_name].assign(bytes, bytes + link.sll_halen);
      continue;
    }
    const bool usable = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    const std::optional<IpAddress> ip = ReadIp(*each->ifa_addr);
    if (usable && ip) addresses.push_back({.interface = each->ifa_name, .hardware = {}, .ip = *ip});
  }
  freeifaddrs(list);
  for (HostAddress& address : addresses) address.hardware = hardware[address.interface];
  return addresses;
}

std::vector<HostAddress> RankAddresses(const std::vector<HostAddress>& all, LinkKind kind,
                                       const ibv_gid& gid) {
  std::vector<HostAddress> likely;
  for (const HostAddress& address : all) {
    if (std::equal(address.ip.begin(), address.ip.end(), std::begin(gid.raw))) {
      likely.insert(likely.begin(), address);
    } else if (MadeOf(gid, kind, address.hardware)) {
      likely.push_back(address);
    }
  }
  return likely.empty() ? all : likely;
}

bool IsIpv4(const IpAddress& ip) {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), ip.begin());
}

sockaddr_storage SocketAddress(const IpAddress& ip, uint16_t port) {
  sockaddr_storage storage{};
  if (IsIpv4(ip)) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, ip.data() + kMappedPrefix.size(), 4);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, ip.data(), ip.size());
  }
  return storage;
}

std::string FormatIp(const IpAddress& ip) {
  char text[INET6_ADDRSTRLEN] = {};
  if (IsIpv4(ip)) {
    inet_ntop(AF_INET, ip.data() + kMappedPrefix.size(), text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, ip.data(), text, sizeof(text));
  }
  return text;
}

}  // namespace verbena::internal
