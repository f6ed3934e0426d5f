// Ids and their addresses, as programs call them: from rdma_create_id to rdma_resolve_route.

#include <netinet/in.h>
#include <rdma/rdma_verbs.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "verbena/transport/preload/rdma_cm_addresses.h"
#include "verbena/transport/preload/rdma_cm_devices.h"
#include "verbena/transport/preload/rdma_cm_id.h"
#include "verbena/transport/preload/rdma_cm_queue_pair.h"
#include "verbena/transport/preload/rdma_cm_release.h"
#include "verbena/transport/preload/rdma_cm_wait.h"

namespace verbena::internal::preload {
namespace {

constexpr int kEndpointTimeoutMs = 2000;
constexpr uint16_t kDefaultPkey = 0xffff;

// Binds the id's socket to `address`, whose port may be 0, and stores what it is bound to. Under
// the lock. 0 or an errno.
int BindSocket(CmId& id, const sockaddr& address) {
  CmId::Guarded& guarded = id.guarded();
  soft::UniqueFd made(
      socket(address.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!made) return errno;
  const int on = 1;
  // A port is free as soon as its id is gone: RDMA's ports have no TIME_WAIT. With port 0 the
  // option would hand out ports that others are bound to.
  if (AddressPort(address) != 0 || guarded.reuse_address) {
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (address.sa_family == AF_INET6) {
    const int six_only = guarded.address_family_only ? 1 : 0;
    setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &six_only, sizeof(six_only));
  }
  if (bind(made.get(), &address, AddressBytes(address)) != 0) return errno;
  socklen_t bytes = sizeof(id.route.addr.src_storage);
  if (getsockname(made.get(), &id.route.addr.src_addr, &bytes) != 0) return errno;
  guarded.bound = std::move(made);
  return 0;
}

// Finds the source address, and binds the id to it and to a device. Under the lock. 0 or an errno.
int ResolveSource(CmId& id, const sockaddr* source, const sockaddr& destination) {
  sockaddr_storage routed = {};
  if (source == nullptr || IsAnyAddress(*source)) {
    if (const int error = SourceAddressFor(destination, routed); error != 0) return error;
    // A port that the program chose stays.
    if (source != nullptr && routed.ss_family == source->sa_family) {
      if (source->sa_family == AF_INET) {
        reinterpret_cast<sockaddr_in&>(routed).sin_port = AddressPort(*source);
      } else {
        reinterpret_cast<sockaddr_in6&>(routed).sin6_port = AddressPort(*source);
      }
    }
    source = reinterpret_cast<const sockaddr*>(&routed);
  }
  if (source->sa_family != destination.sa_family) return EAFNOSUPPORT;
  return BindSocket(id, *source);
}

// The work of rdma_resolve_addr; an event tells how it went. Under the lock.
void ResolveAddress(CmId& id, const sockaddr* source, const sockaddr& destination) {
  CmId::Guarded& guarded = id.guarded();
  int error = 0;
  const sockaddr_storage bound_to = id.route.addr.src_storage;
  const auto& bound = reinterpret_cast<const sockaddr&>(bound_to);
  if (guarded.state == CmState::kIdle) {
    error = ResolveSource(id, source, destination);
  } else if (IsAnyAddress(bound)) {
    guarded.bound = {};
    error = ResolveSource(id, &bound, destination);
  }
  if (error != 0) return id.Post(RDMA_CM_EVENT_ADDR_ERROR, -error);
  std::memcpy(&id.route.addr.dst_storage, &destination, AddressBytes(destination));
  CmDevices::Get().Bind(id);
  guarded.state = CmState::kAddressResolved;
  id.Post(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

int MakeId(rdma_event_channel* channel, void* context, rdma_port_space space, rdma_cm_id** result) {
  if (result == nullptr) return CmFail(EINVAL);
  if (space != RDMA_PS_TCP && space != RDMA_PS_IB) {
    return CmRefuse(
        "rdma_create_id: only the port spaces RDMA_PS_TCP and RDMA_PS_IB: the "
        "soft device has no datagrams");
  }
  if (CmDevices::Get().devices().empty()) return CmFail(ENODEV);
  auto id = std::make_unique<CmId>(space);
  id->context = context;
  id->channel = channel;
  if (channel == nullptr) {
    id->guarded().own_channel = CmIdChannel::Create();
    if (id->guarded().own_channel == nullptr) return -1;
    id->channel = id->guarded().own_channel.get();
  }
  *result = id.release();
  return 0;
}

// Takes the events of `id` that the program did not get out of its channel, with the requests in
// them, which nobody will answer. Under the lock.
void DropEvents(CmId& id) {
  for (const std::unique_ptr<CmIdEvent>& event : id.events().Remove(id)) {
    if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) continue;
    CmId* const request = &Behind(event->id);
    DropEvents(*request);
    request->Close(CmKind::kReject);
    delete request;
  }
}

// Has `channel` take the id's events that the program did not get, and those of requests among
// them: their ids were made for the channel that the program leaves. Under the lock.
void MoveToChannel(CmId& id, rdma_event_channel* channel) {
  for (std::unique_ptr<CmIdEvent>& event : id.events().Remove(id)) {
    const bool is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    CmId* const request = is_request ? &Behind(event->id) : nullptr;
    // First, because the program does not know the id before.
    Behind(channel).Post(std::move(event));
    if (request != nullptr) MoveToChannel(*request, channel);
  }
  id.channel = channel;
}

// How an id ends whose program leaves it as it is.
CmKind LastWord(CmState state) {
  return state == CmState::kConnected || state == CmState::kReplied ? CmKind::kDisconnect
                                                                    : CmKind::kReject;
}

// Creates the id of rdma_create_ep, resolved or bound as `info` says.
int SetUpEndpoint(rdma_cm_id* id, const rdma_addrinfo& info, ibv_pd* pd, ibv_qp_init_attr* init) {
  // The address says which kind it is, as the manual of rdma_getaddrinfo tells.
  if (init != nullptr) init->qp_type = static_cast<ibv_qp_type>(info.ai_qp_type);
  if ((info.ai_flags & RAI_PASSIVE) != 0) {
    if (rdma_bind_addr(id, info.ai_src_addr) != 0) return -1;
    if (init != nullptr) {
      const std::scoped_lock lock(CmLoop::Instance().mutex());
      Behind(id).guarded().passive_qp = CmPassiveQp{.pd = pd, .init = *init};
    }
    return 0;
  }
  if (rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, kEndpointTimeoutMs) != 0 ||
      rdma_resolve_route(id, kEndpointTimeoutMs) != 0) {
    return -1;
  }
  return init == nullptr ? 0 : rdma_create_qp(id, pd, init);
}

}  // namespace
}  // namespace verbena::internal::preload

extern "C" {

using namespace verbena::internal::preload;

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                   rdma_port_space space) {
  return MakeId(channel, context, space, id);
}

int rdma_destroy_id(rdma_cm_id* visible) {
  CmId& id = Behind(visible);
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    id.guarded().acceptor.reset();
    id.Close(LastWord(id.guarded().state));
    DropEvents(id);
  }
  if (id.event != nullptr) rdma_ack_cm_event(std::exchange(id.event, nullptr));
  WaitUntilAcknowledged(id);
  delete &id;
  return 0;
}

int rdma_create_ep(rdma_cm_id** result, rdma_addrinfo* info, ibv_pd* pd, ibv_qp_init_attr* init) {
  if (result == nullptr || info == nullptr) return CmFail(EINVAL);
  rdma_cm_id* id = nullptr;
  const auto space = static_cast<rdma_port_space>(info->ai_port_space);
  if (MakeId(nullptr, nullptr, space, &id) != 0 || id == nullptr) return -1;
  if (SetUpEndpoint(id, *info, pd, init) != 0) {
    const int error = errno;
    rdma_destroy_ep(id);
    return CmFail(error);
  }
  *result = id;
  return 0;
}

void rdma_destroy_ep(rdma_cm_id* id) {
  rdma_destroy_qp(id);
  rdma_destroy_srq(id);
  rdma_destroy_id(id);
}

int rdma_bind_addr(rdma_cm_id* visible, sockaddr* address) {
  CmId& id = Behind(visible);
  if (address == nullptr || AddressBytes(*address) == 0) return CmFail(EINVAL);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  if (id.guarded().state != CmState::kIdle) return CmFail(EINVAL);
  if (const int error = BindSocket(id, *address); error != 0) return CmFail(error);
  if (!IsAnyAddress(*address)) CmDevices::Get().Bind(id);
  id.guarded().state = CmState::kBound;
  return 0;
}

int rdma_resolve_addr(rdma_cm_id* visible, sockaddr* source, sockaddr* destination,
                      int /*timeout_ms*/) {
  CmId& id = Behind(visible);
  if (destination == nullptr || AddressBytes(*destination) == 0 ||
      (source != nullptr && AddressBytes(*source) == 0)) {
    return CmFail(EINVAL);
  }
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    const CmState state = id.guarded().state;
    if (state != CmState::kIdle && state != CmState::kBound) return CmFail(EINVAL);
    ResolveAddress(id, source, *destination);
  }
  return CompleteCmCall(id);
}

int rdma_resolve_route(rdma_cm_id* visible, int /*timeout_ms*/) {
  CmId& id = Behind(visible);
  CmMessage own;
  if (id.verbs == nullptr || CmDevices::Describe(id, own) != 0) return CmFail(EINVAL);
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    CmId::Guarded& guarded = id.guarded();
    if (guarded.state != CmState::kAddressResolved) return CmFail(EINVAL);
    // The peer's side is not known before it answers.
    std::memcpy(guarded.path.sgid.raw, own.gid.data(), own.gid.size());
    guarded.path.slid = htons(own.lid);
    guarded.path.pkey = htons(kDefaultPkey);
    guarded.path.mtu = own.mtu;
    guarded.path.reversible = 1;
    guarded.path.numb_path = 1;
    id.route.path_rec = &guarded.path;
    id.route.num_paths = 1;
    guarded.state = CmState::kRouteResolved;
    id.Post(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  }
  return CompleteCmCall(id);
}

int rdma_migrate_id(rdma_cm_id* visible, rdma_event_channel* channel) {
  CmId& id = Behind(visible);
  std::unique_ptr<CmIdChannel> own;
  if (channel == nullptr) {
    own = CmIdChannel::Create();
    if (own == nullptr) return -1;
    channel = own.get();
  }
  if (id.event != nullptr) rdma_ack_cm_event(std::exchange(id.event, nullptr));
  WaitUntilAcknowledged(id);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  MoveToChannel(id, channel);
  id.guarded().own_channel = std::move(own);
  return 0;
}

in_port_t rdma_get_src_port(rdma_cm_id* id) { return AddressPort(id->route.addr.src_addr); }

in_port_t rdma_get_dst_port(rdma_cm_id* id) { return AddressPort(id->route.addr.dst_addr); }

}  // extern "C"
