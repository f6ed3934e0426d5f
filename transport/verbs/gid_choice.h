// ChooseGid: which GID of a port links use, when the user names none.
//
// A port has several GIDs. Each address of its interface has one, on RoCE one in a v1 and one in a
// v2 flavour. Interfaces in other network namespaces have more, through which nothing can be sent
// from here. ChooseGid is a pure function, and prefers a GID in this order:
//
//   1. not one of another network namespace
//   2. of the interface, with the address, or at the index that was asked for
//   3. RoCE v2 before v1: v2 is UDP, which routers and today's switches carry
//   4. routable before link-local: a link-local GID reaches one subnet, and needs a scope
//   5. IPv4 before IPv6: it is what hosts are usually addressed by
//   6. the lowest index

#ifndef VERBENA_TRANSPORT_VERBS_GID_CHOICE_H_
#define VERBENA_TRANSPORT_VERBS_GID_CHOICE_H_

#include <infiniband/verbs.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/verbs/port_info.h"

namespace verbena::internal {

// Conditions on the GID; unset fields leave the choice open.
struct GidWish {
  std::string netdev = {};
  std::optional<ibv_gid> address = {};
  std::optional<int> index = {};
};

// NOT_FOUND lists what the port has; OUT_OF_RANGE names the index, which may never exceed 255,
// because no address handle can name more; FAILED_PRECONDITION when all that fits lies in other
// network namespaces.
absl::StatusOr<GidInfo> ChooseGid(const PortInfo& port, const GidWish& wish = {});

// fe80::/10, of which InfiniBand's default subnet prefix is one.
bool IsLinkLocal(const ibv_gid& gid);
// ::ffff:0:0/96
bool IsIpv4(const ibv_gid& gid);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_GID_CHOICE_H_
