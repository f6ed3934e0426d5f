#include "examples/block_store/cable_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "fmt/format.h"

namespace block_store {
namespace {

// TEST-NET-1, -2 and -3 of RFC 5737, and the benchmarks' range of RFC 2544.
constexpr AddressRange kRanges[] = {
    {0xc0000200, 0xc00002ff},  // 192.0.2.0/24
    {0xc6336400, 0xc63364ff},  // 198.51.100.0/24
    {0xcb007100, 0xcb0071ff},  // 203.0.113.0/24
    {0xc6120000, 0xc613ffff},  // 198.18.0.0/15
};
constexpr uint32_t kAddresses = 4;
// A route to fewer addresses than this leads to certain hosts. VPNs split a default route in two or
// more (0.0.0.0/1, 128.0.0.0/1).
constexpr int kLeastPrefixBits = 8;

std::string TextOf(uint32_t address) {
  const in_addr in{.s_addr = htonl(address)};
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &in, text, sizeof(text));
}

AddressRange RangeOf(uint32_t address, int prefix_bits) {
  const uint32_t mask = prefix_bits == 0 ? 0 : ~uint32_t{0} << (32 - prefix_bits);
  return {address & mask, address | ~mask};
}

uint32_t AddressIn(const sockaddr& address) {
  sockaddr_in in;
  std::memcpy(&in, &address, sizeof(in));
  return ntohl(in.sin_addr.s_addr);
}

absl::Status AddAddresses(std::vector<AddressRange>& taken) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return absl::ErrnoToStatus(errno, "the host's addresses");
  const absl::Cleanup free = [all] { freeifaddrs(all); };
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const int bits = one->ifa_netmask == nullptr ? 32 : std::popcount(AddressIn(*one->ifa_netmask));
    taken.push_back(RangeOf(AddressIn(*one->ifa_addr), bits));
  }
  return absl::OkStatus();
}

void AddRoute(const nlmsghdr* message, std::vector<AddressRange>& taken) {
  const auto* const route = static_cast<const rtmsg*>(NLMSG_DATA(message));
  if (route->rtm_family != AF_INET || route->rtm_dst_len < kLeastPrefixBits) return;
  auto left = static_cast<int>(RTM_PAYLOAD(message));
  for (const rtattr* each = RTM_RTA(route); RTA_OK(each, left); each = RTA_NEXT(each, left)) {
    if (each->rta_type != RTA_DST || RTA_PAYLOAD(each) != sizeof(uint32_t)) continue;
    uint32_t address;
    std::memcpy(&address, RTA_DATA(each), sizeof(address));
    taken.push_back(RangeOf(ntohl(address), route->rtm_dst_len));
  }
}

// The kernel tells the routes of all its tables (rtnetlink(7)).
absl::Status AddRoutes(std::vector<AddressRange>& taken) {
  const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (netlink < 0) return absl::ErrnoToStatus(errno, "the host's routes");
  const absl::Cleanup close_netlink = [netlink] { close(netlink); };
  struct {
    nlmsghdr header;
    rtmsg body;
  } request{};
  request.header = {.nlmsg_len = sizeof(request),
                    .nlmsg_type = RTM_GETROUTE,
                    .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                    .nlmsg_seq = 1,
                    .nlmsg_pid = 0};
  request.body.rtm_family = AF_INET;
  if (send(netlink, &request, sizeof(request), 0) < 0) {
    return absl::ErrnoToStatus(errno, "the host's routes");
  }
  // The kernel fills at most 32 KiB at once (netlink_dump).
  std::vector<std::byte> answer(size_t{32} << 10);
  while (true) {
    const ssize_t bytes = recv(netlink, answer.data(), answer.size(), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return absl::ErrnoToStatus(errno, "the host's routes");
    auto left = static_cast<unsigned>(bytes);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(answer.data());
         NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type == NLMSG_DONE) return absl::OkStatus();
      if (message->nlmsg_type == NLMSG_ERROR) {
        const auto* const error = static_cast<const nlmsgerr*>(NLMSG_DATA(message));
        return absl::ErrnoToStatus(-error->error, "the host's routes");
      }
      AddRoute(message, taken);
    }
  }
}

// Gives what the host uses: the networks of its addresses, and what its routes lead to, but for
// default ones.
absl::StatusOr<std::vector<AddressRange>> TakenAddresses() {
  std::vector<AddressRange> taken;
  if (absl::Status status = AddAddresses(taken); !status.ok()) return status;
  if (absl::Status status = AddRoutes(taken); !status.ok()) return status;
  return taken;
}

// A socket whose name nobody else in this network namespace has; -1 and errno otherwise.
int BindAlone(uint32_t network) {
  const std::string name = fmt::format("verbena cable {}", TextOf(network));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int claim = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (claim < 0) return -1;
  if (bind(claim, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return claim;
  const int error = errno;
  close(claim);
  errno = error;
  return -1;
}

}  // namespace

std::optional<uint32_t> FreeNetwork(std::span<const AddressRange> taken) {
  for (const AddressRange& range : kRanges) {
    for (uint32_t network = range.first; network < range.last; network += kAddresses) {
      const uint32_t last = network + kAddresses - 1;
      const bool is_taken = std::ranges::any_of(taken, [&](const AddressRange& other) {
        return other.first <= last && network <= other.last;
      });
      if (!is_taken) return network;
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<CableAddresses>> CableAddresses::Claim() {
  absl::StatusOr<std::vector<AddressRange>> taken = TakenAddresses();
  if (!taken.ok()) return taken.status();
  while (const std::optional<uint32_t> network = FreeNetwork(*taken)) {
    if (const int claim = BindAlone(*network); claim >= 0) {
      return std::unique_ptr<CableAddresses>(new CableAddresses(*network, claim));
    }
    if (errno != EADDRINUSE) return absl::ErrnoToStatus(errno, "a claim to " + TextOf(*network));
    taken->push_back({*network, *network + kAddresses - 1});
  }
  return absl::NotFoundError(
      "this host's addresses or routes cover all of 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24 "
      "and 198.18.0.0/15: none is left for a cable");
}

CableAddresses::~CableAddresses() { close(claim_); }

std::string CableAddresses::near() const { return TextOf(network_ + 1); }
std::string CableAddresses::far() const { return TextOf(network_ + 2); }

}  // namespace block_store
