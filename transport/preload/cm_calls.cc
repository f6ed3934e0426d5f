#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/preload/cm_connect.h"
#include "verbena/transport/preload/cm_id.h"

// Ids and their addresses, as programs call them: from rdma_create_id to rdma_resolve_route.

namespace verbena::internal::preload {
namespace {

constexpr int kEndpointTimeoutMs = 2000;
constexpr uint16_t kPathPkey = 0xffff;

// Binds the id's socket to `address`, whose port may be 0, and stores what it is bound to. Under
// the lock. 0 or an errno.
int BindId(CmId& id, const SocketAddress& address) {
  CmId::Guarded& guarded = id.guarded();
  UniqueFd made = OpenTcpSocket(address.family());
  // A port is free as soon as its id is gone: RDMA's ports have no TIME_WAIT. With port 0 the
  // option would hand out ports that others are bound to.
  const SocketBinding options{.reuse = address.port() != 0 || guarded.reuse_address,
                              .both_families = !guarded.address_family_only};
  if (!made || !BindTcpSocket(made.get(), address, options)) return errno;
  const SocketAddress bound = SocketAddress::OfSocket(made.get());
  std::memcpy(&id.route.addr.src_storage, bound.get(), bound.size());
  guarded.bound = std::move(made);
  return 0;
}

// The address from which this host reaches `destination`, without a port. 0 or an errno.
int SourceAddressFor(SocketAddress destination, SocketAddress& source) {
  // Connecting a datagram socket sends nothing; it asks the routing tables.
  const UniqueFd probe(socket(destination.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Port 0 is refused by some kernels.
  destination.set_port(1);
  if (!probe || connect(probe.get(), destination.get(), destination.size()) != 0) return errno;
  source = SocketAddress::OfSocket(probe.get());
  source.set_port(0);
  return 0;
}

// Finds the source address, and binds the id to it and to a device; `source` may have none. Under
// the lock. 0 or an errno.
int ResolveSource(CmId& id, SocketAddress source, const SocketAddress& destination) {
  if (!source.has_value() || IsWildcard(source.ip())) {
    const SocketAddress given = source;
    if (const int error = SourceAddressFor(destination, source); error != 0) return error;
    // A port that the program chose stays.
    if (source.family() == given.family()) source.set_port(given.port());
  }
  if (source.family() != destination.family()) return EAFNOSUPPORT;
  return BindId(id, source);
}

// The work of rdma_resolve_addr; an event tells how it went. Under the lock.
void ResolveAddress(CmId& id, const SocketAddress& source, const SocketAddress& destination) {
  CmId::Guarded& guarded = id.guarded();
  int error = 0;
  const SocketAddress bound(id.route.addr.src_addr);
  if (guarded.state == CmState::kIdle) {
    error = ResolveSource(id, source, destination);
  } else if (IsWildcard(bound.ip())) {
    guarded.bound = {};
    error = ResolveSource(id, bound, destination);
  }
  if (error != 0) return id.Post(RDMA_CM_EVENT_ADDR_ERROR, -error);
  std::memcpy(&id.route.addr.dst_storage, destination.get(), destination.size());
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
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    if (const int error = CmLoop::Instance().Start(); error != 0) return CmFail(error);
  }
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

// Told when an id has one unacknowledged event less. Never destroyed, as CmLoop.
std::condition_variable& Acknowledged() {
  static auto& told = *new std::condition_variable;
  return told;
}

// Takes the queue pair of an id whose peer accepted into service, and tells the peer. Turns the
// event into a failure if that does not work.
void FinishConnecting(CmIdEvent& event) {
  CmId& id = Behind(event.id);
  // Without a queue pair of ours the program finishes, by rdma_establish.
  if (id.qp == nullptr) return;
  const int error = ConnectCmQueuePair(id);
  if (error != 0) BreakCmQueuePair(id);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  if (error != 0) {
    id.Close(CmKind::kReject);
    event.event = RDMA_CM_EVENT_CONNECT_ERROR;
    event.status = -error;
    return;
  }
  event.event = RDMA_CM_EVENT_ESTABLISHED;
  id.SendReady();
}

// rdma_freeaddrinfo frees all of it, by free().
sockaddr* CopyOf(const sockaddr* address, socklen_t bytes) {
  void* const copy = std::malloc(bytes);
  if (copy != nullptr) std::memcpy(copy, address, bytes);
  return static_cast<sockaddr*>(copy);
}

constexpr uint8_t kLongestAckTimeout = 31;  // a field of five bits

int SetIdOption(CmId& id, int option, const void* value, size_t bytes) {
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  int number = 0;
  switch (option) {
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY:
      if (bytes != sizeof(int)) return CmFail(EINVAL);
      std::memcpy(&number, value, sizeof(number));
      (option == RDMA_OPTION_ID_AFONLY ? id.guarded().address_family_only
                                       : id.guarded().reuse_address) = number != 0;
      return 0;
    // For the program to read: the soft device uses no network that has types of service.
    case RDMA_OPTION_ID_TOS:
      if (bytes != sizeof(uint8_t)) return CmFail(EINVAL);
      id.guarded().terms.traffic_class = *static_cast<const uint8_t*>(value);
      return 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT: {
      const uint8_t timeout = bytes == sizeof(uint8_t) ? *static_cast<const uint8_t*>(value) : 255;
      if (timeout > kLongestAckTimeout) return CmFail(EINVAL);
      id.guarded().terms.ack_timeout = timeout;
      return 0;
    }
    default:
      return CmFail(ENOSYS);
  }
}

void CopySource(const rdma_addrinfo& hints, rdma_addrinfo& info) {
  if (info.ai_src_len != 0 || hints.ai_src_addr == nullptr || hints.ai_src_len == 0) return;
  info.ai_src_addr = CopyOf(hints.ai_src_addr, hints.ai_src_len);
  info.ai_src_len = hints.ai_src_len;
}

// The address `found`, as the program's own or its peer's; without one, that of the hints.
rdma_addrinfo* Converted(const addrinfo* found, const rdma_addrinfo& hints) {
  auto* const info = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
  if (info == nullptr) return nullptr;
  info->ai_flags = hints.ai_flags;
  info->ai_family = found != nullptr ? found->ai_family : hints.ai_family;
  info->ai_port_space = hints.ai_port_space != 0 ? hints.ai_port_space : RDMA_PS_TCP;
  info->ai_qp_type = hints.ai_qp_type != 0 ? hints.ai_qp_type : IBV_QPT_RC;
  if (found != nullptr && (hints.ai_flags & RAI_PASSIVE) != 0) {
    info->ai_src_addr = CopyOf(found->ai_addr, found->ai_addrlen);
    info->ai_src_len = found->ai_addrlen;
  } else if (found != nullptr) {
    info->ai_dst_addr = CopyOf(found->ai_addr, found->ai_addrlen);
    info->ai_dst_len = found->ai_addrlen;
  } else if (hints.ai_dst_addr != nullptr && hints.ai_dst_len != 0) {
    info->ai_dst_addr = CopyOf(hints.ai_dst_addr, hints.ai_dst_len);
    info->ai_dst_len = hints.ai_dst_len;
  }
  CopySource(hints, *info);
  return info;
}

constexpr const char* kNoMulticast = "rdma_join_multicast: the soft device has no datagrams";

}  // namespace

// Event channels and events, as programs call them.

void WaitUntilAcknowledged(CmId& id) {
  std::unique_lock lock(CmLoop::Instance().mutex());
  Acknowledged().wait(lock, [&] { return id.guarded().unacknowledged == 0; });
}

int CompleteCmCall(CmId& id) {
  if (!id.synchronous()) return 0;
  if (id.event != nullptr) rdma_ack_cm_event(std::exchange(id.event, nullptr));
  if (rdma_get_cm_event(id.channel, &id.event) != 0) return -1;
  if (id.event->status == 0) return 0;
  if (id.event->event == RDMA_CM_EVENT_REJECTED) return CmFail(ECONNREFUSED);
  return CmFail(std::abs(id.event->status));
}

}  // namespace verbena::internal::preload

extern "C" {

using namespace verbena::internal::preload;
using verbena::internal::IsWildcard;
using verbena::internal::SocketAddress;

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
  const SocketAddress to = address != nullptr ? SocketAddress(*address) : SocketAddress();
  if (!to.has_value()) return CmFail(EINVAL);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  if (id.guarded().state != CmState::kIdle) return CmFail(EINVAL);
  if (const int error = BindId(id, to); error != 0) return CmFail(error);
  if (!IsWildcard(to.ip())) CmDevices::Get().Bind(id);
  id.guarded().state = CmState::kBound;
  return 0;
}

int rdma_resolve_addr(rdma_cm_id* visible, sockaddr* source, sockaddr* destination,
                      int /*timeout_ms*/) {
  CmId& id = Behind(visible);
  const SocketAddress from = source != nullptr ? SocketAddress(*source) : SocketAddress();
  const SocketAddress to = destination != nullptr ? SocketAddress(*destination) : SocketAddress();
  if (!to.has_value() || (source != nullptr && !from.has_value())) return CmFail(EINVAL);
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    const CmState state = id.guarded().state;
    if (state != CmState::kIdle && state != CmState::kBound) return CmFail(EINVAL);
    ResolveAddress(id, from, to);
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
    guarded.path.pkey = htons(kPathPkey);
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

in_port_t rdma_get_src_port(rdma_cm_id* id) {
  return htons(SocketAddress(id->route.addr.src_addr).port());
}

in_port_t rdma_get_dst_port(rdma_cm_id* id) {
  return htons(SocketAddress(id->route.addr.dst_addr).port());
}

using namespace verbena::internal::preload;

rdma_event_channel* rdma_create_event_channel() { return CmIdChannel::Create().release(); }

void rdma_destroy_event_channel(rdma_event_channel* channel) { delete &Behind(channel); }

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** result) {
  if (channel == nullptr || result == nullptr) return CmFail(EINVAL);
  while (true) {
    if (const int error = Behind(channel).Wait(); error != 0) return CmFail(error);
    std::unique_ptr<CmIdEvent> event;
    {
      const std::scoped_lock lock(CmLoop::Instance().mutex());
      event = Behind(channel).Pop();
      // Its event went with its id, or moved to another channel.
      if (event == nullptr) continue;
      CmId::Guarded& held = event->held->guarded();
      ++held.unacknowledged;
      if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        VERBENA_CHECK(held.waiting_requests > 0) << held.waiting_requests << " requests wait";
        --held.waiting_requests;
      }
    }
    if (event->connects_queue_pair) FinishConnecting(*event);
    *result = event.release();
    return 0;
  }
}

int rdma_ack_cm_event(rdma_cm_event* visible) {
  if (visible == nullptr) return CmFail(EINVAL);
  const std::unique_ptr<CmIdEvent> event(static_cast<CmIdEvent*>(visible));
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  CmId::Guarded& held = event->held->guarded();
  VERBENA_CHECK(held.unacknowledged > 0) << "an event is acknowledged twice";
  --held.unacknowledged;
  Acknowledged().notify_all();
  return 0;
}

const char* rdma_event_str(rdma_cm_event_type event) {
  static constexpr const char* kNames[] = {
      "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
      "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
      "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
      "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
      "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
      "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
      "RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
      "RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT"};
  const auto number = static_cast<size_t>(event);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN EVENT";
}

}  // extern "C"

// Calls beside ids: devices, names, options, and refusals of what the soft device does not have.

extern "C" {

using namespace verbena::internal::preload;

ibv_context** rdma_get_devices(int* count) {
  const auto& devices = CmDevices::Get().devices();
  auto** const list =
      static_cast<ibv_context**>(std::calloc(devices.size() + 1, sizeof(ibv_context*)));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < devices.size(); ++i) list[i] = devices[i].verbs;
  if (count != nullptr) *count = static_cast<int>(devices.size());
  return list;
}

void rdma_free_devices(ibv_context** list) { std::free(static_cast<void*>(list)); }

int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** result) {
  if (result == nullptr || (node == nullptr && service == nullptr && hints == nullptr)) {
    return CmFail(EINVAL);
  }
  static constexpr rdma_addrinfo kNoHints = {};
  if (hints == nullptr) hints = &kNoHints;
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  if ((hints->ai_flags & RAI_PASSIVE) != 0) wanted.ai_flags |= AI_PASSIVE;
  if ((hints->ai_flags & RAI_NUMERICHOST) != 0) wanted.ai_flags |= AI_NUMERICHOST;
  if ((hints->ai_flags & RAI_FAMILY) != 0 || hints->ai_family != 0) {
    wanted.ai_family = hints->ai_family;
  }
  addrinfo* found = nullptr;
  if (node == nullptr && service == nullptr) {
    *result = Converted(nullptr, *hints);
    return *result != nullptr ? 0 : CmFail(ENOMEM);
  }
  // As librdmacm, it returns what getaddrinfo returns: programs print it by gai_strerror.
  if (const int error = getaddrinfo(node, service, &wanted, &found); error != 0) return error;
  *result = Converted(found, *hints);
  freeaddrinfo(found);
  return *result != nullptr ? 0 : EAI_MEMORY;
}

void rdma_freeaddrinfo(rdma_addrinfo* info) {
  while (info != nullptr) {
    rdma_addrinfo* const next = info->ai_next;
    std::free(info->ai_src_addr);
    std::free(info->ai_dst_addr);
    std::free(info);
    info = next;
  }
}

int rdma_set_option(rdma_cm_id* id, int level, int option, void* value, size_t bytes) {
  if (value == nullptr) return CmFail(EINVAL);
  if (level != RDMA_OPTION_ID) return CmFail(ENOSYS);
  return SetIdOption(Behind(id), option, value, bytes);
}

int rdma_join_multicast(rdma_cm_id* /*id*/, sockaddr* /*address*/, void* /*context*/) {
  return CmRefuse(kNoMulticast);
}

int rdma_join_multicast_ex(rdma_cm_id* /*id*/, rdma_cm_join_mc_attr_ex* /*attributes*/,
                           void* /*context*/) {
  return CmRefuse(kNoMulticast);
}

int rdma_leave_multicast(rdma_cm_id* /*id*/, sockaddr* /*address*/) {
  return CmFail(EADDRNOTAVAIL);  // it can have joined none
}

// Enhanced connection establishment is for options of vendors: there are none.
int rdma_set_local_ece(rdma_cm_id* /*id*/, ibv_ece* ece) {
  return ece != nullptr ? 0 : CmFail(EINVAL);
}

int rdma_get_remote_ece(rdma_cm_id* /*id*/, ibv_ece* ece) {
  if (ece == nullptr) return CmFail(EINVAL);
  *ece = {};
  return 0;
}

// The installed librdmacm's sockets stand on these calls, but read fields of its own behind an id.
int rsocket(int /*domain*/, int /*type*/, int /*protocol*/) {
  return CmRefuse("rsocket: rsockets are not supported, rdma_cm is");
}

}  // extern "C"
