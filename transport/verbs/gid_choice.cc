#include "verbena/transport/verbs/gid_choice.h"

#include <cstring>
#include <tuple>

#include "fmt/format.h"

namespace verbena::internal {
namespace {

// The highest index that an address handle can name (ibv_global_route::sgid_index is a byte).
constexpr int kMaxGidIndex = 255;

bool Matches(const GidInfo& gid, const GidWish& wish) {
  if (!wish.netdev.empty() && gid.netdev != wish.netdev) return false;
  if (wish.index && gid.index != *wish.index) return false;
  return !wish.address || std::memcmp(gid.gid.raw, wish.address->raw, sizeof(gid.gid.raw)) == 0;
}

// Smaller is better.
auto Rank(const GidInfo& gid) {
  return std::tuple(gid.type == GidType::kRoceV1, IsLinkLocal(gid.gid), !IsIpv4(gid.gid),
                    gid.index);
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

bool IsLinkLocal(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

bool IsIpv4(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
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
  if (best != nullptr) return *best;
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
