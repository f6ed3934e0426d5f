#include "verbena/transport/preload/cm_id.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal::preload {
namespace {

void CopyPrivateData(const CmMessage& message, CmIdEvent& event) {
  event.private_data = message.private_data;
  rdma_conn_param& conn = event.param.conn;
  conn.private_data = message.private_bytes == 0 ? nullptr : event.private_data.data();
  conn.private_data_len = message.private_bytes;
}

// The sender's terms, as its peer sees them: what it offers to serve is what we may start.
void CopyTerms(const CmMessage& message, CmIdEvent& event) {
  CopyPrivateData(message, event);
  rdma_conn_param& conn = event.param.conn;
  conn.responder_resources = message.initiator_depth;
  conn.initiator_depth = message.responder_resources;
  conn.flow_control = message.flow_control ? 1 : 0;
  conn.retry_count = message.retry_count;
  conn.rnr_retry_count = message.rnr_retry_count;
  conn.srq = message.srq ? 1 : 0;
  conn.qp_num = message.qpn;
}

void StoreSocketAddresses(int fd, rdma_addr& address) {
  socklen_t bytes = sizeof(address.src_storage);
  getsockname(fd, &address.src_addr, &bytes);
  bytes = sizeof(address.dst_storage);
  getpeername(fd, &address.dst_addr, &bytes);
}

// The GID of a device without a TCP wire, which is reached on this host alone (context.cc).
bool IsLocalGid(const IpAddress& gid) {
  static constexpr std::array<uint8_t, 4> kPrefix = {0xfd, 'v', 'b', 'n'};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.begin());
}

bool IsAddress(const IpAddress& gid) {
  constexpr uint8_t kLinkLocal = 0xfe;
  return IsIpv4(gid) || (gid[0] >= 0x20 && gid[0] < kLinkLocal && !IsLocalGid(gid));
}

bool AnySource() {
  const char* any = std::getenv("VERBENA_SOFT_ANY_SOURCE");
  return any != nullptr && std::string(any) == "1";
}

// Whether the peer at the other end of the connected socket `fd` may name the GID `named`, to which
// our device, whose GID is `own`, would connect. If ours is an IP address, so is the peer's: the
// one that it connects from. VERBENA_SOFT_ANY_SOURCE=1 allows others.
bool MayNameGid(int fd, const IpAddress& own, const IpAddress& named) {
  static ThrottledLog& refused = *new ThrottledLog(LogComponent::kDevice, {});
  if (!IsAddress(own) || AnySource()) return true;
  const std::optional<TcpSource> source = TcpSource::Of(fd);
  if (!source.has_value()) return false;
  if (source->MayHave(named) || (source->this_host && IsLocalGid(named))) return true;
  VERBENA_LOG_THROTTLED(refused, kWarning, Clock::Real().Now(),
                        "rdma_cm: a request from " + FormatIp(source->address) +
                            " names the GID of " + FormatIp(named) +
                            "; VERBENA_SOFT_ANY_SOURCE=1 allows it");
  return false;
}

constexpr uint8_t kPort = 1;
constexpr int kGidIndex = 0;

uint8_t AtMost255(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

}  // namespace

int CmRefuse(const char* why) {
  VERBENA_LOG_LINE(kDevice, kWarning, why);
  return CmFail(EOPNOTSUPP);
}

CmId::CmId(rdma_port_space space) : rdma_cm_id{} {
  ps = space;
  qp_type = IBV_QPT_RC;
  std::random_device random;
  guarded_.terms.psn = random() & 0xffffff;
}

CmId::~CmId() = default;

void CmId::Post(rdma_cm_event_type type, int status) {
  PostEvent(std::make_unique<CmIdEvent>(*this, type, status));
}

void CmId::Close(CmKind kind) {
  if (guarded_.stream != nullptr) {
    CmMessage message;
    message.kind = kind;
    if (kind == CmKind::kReject) message.reason = kCmConsumerDefined;
    guarded_.stream->Send(message);
    guarded_.stream.reset();
  }
  guarded_.state = CmState::kDisconnected;
}

void CmId::Lose(rdma_cm_event_type type, int status) {
  guarded_.state = CmState::kDisconnected;
  Post(type, status);
  // The stream may be the caller.
  guarded_.stream.reset();
}

void CmId::OnStreamConnected() {
  StoreSocketAddresses(guarded_.stream->fd(), route.addr);
  VERBENA_CHECK(guarded_.state == CmState::kConnecting && guarded_.unsent_request.has_value())
      << "an id connects in state " << guarded_.state;
  guarded_.stream->Send(*guarded_.unsent_request);
  guarded_.unsent_request.reset();
}

void CmId::OnStreamMessage(const CmMessage& message) {
  bool in_turn = false;
  switch (message.kind) {
    case CmKind::kReply:
      in_turn = TakeReply(message);
      break;
    case CmKind::kReady:
      in_turn = TakeReady();
      break;
    case CmKind::kReject:
      in_turn = TakeReject(message);
      break;
    case CmKind::kDisconnect:
      in_turn = TakeDisconnect();
      break;
    case CmKind::kRequest:
      break;
  }
  if (!in_turn) OnStreamLost(EPROTO);
}

bool CmId::TakeReply(const CmMessage& message) {
  if (guarded_.state != CmState::kConnecting) return false;
  guarded_.stream->ClearTimeLimit();
  guarded_.state = CmState::kReplied;
  CmTerms& terms = guarded_.terms;
  terms.peer = message;
  // Neither side starts more than the other offers to serve.
  terms.initiator_depth = std::min(terms.initiator_depth, message.responder_resources);
  terms.responder_resources = std::min(terms.responder_resources, message.initiator_depth);
  auto event = std::make_unique<CmIdEvent>(*this, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
  event->connects_queue_pair = true;
  CopyTerms(message, *event);
  PostEvent(std::move(event));
  return true;
}

bool CmId::TakeReady() {
  if (std::exchange(guarded_.notified, false)) return true;
  if (guarded_.state != CmState::kAccepted) return false;
  guarded_.stream->ClearTimeLimit();
  guarded_.state = CmState::kConnected;
  Post(RDMA_CM_EVENT_ESTABLISHED, 0);
  return true;
}

bool CmId::TakeReject(const CmMessage& message) {
  const CmState state = guarded_.state;
  if (state != CmState::kConnecting && state != CmState::kRequested &&
      state != CmState::kAccepted) {
    return false;
  }
  auto event = std::make_unique<CmIdEvent>(*this, RDMA_CM_EVENT_REJECTED, message.reason);
  CopyPrivateData(message, *event);
  guarded_.state = CmState::kDisconnected;
  PostEvent(std::move(event));
  guarded_.stream.reset();
  return true;
}

bool CmId::TakeDisconnect() {
  if (guarded_.state != CmState::kConnected && guarded_.state != CmState::kReplied) return false;
  Lose(RDMA_CM_EVENT_DISCONNECTED, 0);
  return true;
}

void CmId::OnStreamLost(int error) {
  switch (guarded_.state) {
    case CmState::kConnecting:
      if (error == ECONNREFUSED) return Lose(RDMA_CM_EVENT_REJECTED, kCmInvalidService);
      if (error == EPROTO) return Lose(RDMA_CM_EVENT_CONNECT_ERROR, -error);
      if (error == ECONNRESET) return Lose(RDMA_CM_EVENT_REJECTED, -error);
      return Lose(RDMA_CM_EVENT_UNREACHABLE, -error);
    case CmState::kRequested:
      return Lose(RDMA_CM_EVENT_REJECTED, -error);
    case CmState::kAccepted:
      if (error == ETIMEDOUT) return Lose(RDMA_CM_EVENT_UNREACHABLE, -error);
      return Lose(RDMA_CM_EVENT_CONNECT_ERROR, -error);
    case CmState::kReplied:
    case CmState::kConnected:
      return Lose(RDMA_CM_EVENT_DISCONNECTED, 0);
    default:
      guarded_.stream.reset();
  }
}

bool CmId::OnRequest(std::unique_ptr<CmStream>& stream, const CmMessage& message) {
  if (guarded_.waiting_requests >= guarded_.backlog) return false;
  // The program's device would connect to whatever address a stranger names.
  const ibv_gid& own = CmDevices::Get().devices().front().gid;
  if (!MayNameGid(stream->fd(), std::to_array(own.raw), message.gid)) return false;
  // The program owns it once it has the event.
  auto* const request = new CmId(ps);
  request->channel = channel;
  request->context = context;
  CmDevices::Get().Bind(*request);
  request->guarded_.state = CmState::kRequested;
  // Until rdma_accept says otherwise, as much as the peer asks for: programs may connect a queue
  // pair of their own before they accept.
  const CmDevices::Device& device = CmDevices::Get().Of(*request);
  CmTerms& terms = request->guarded_.terms;
  terms.peer = message;
  terms.responder_resources = std::min(message.initiator_depth, device.responder_resources);
  terms.initiator_depth = std::min(message.responder_resources, device.initiator_depth);
  terms.retry_count = message.retry_count;
  StoreSocketAddresses(stream->fd(), request->route.addr);
  stream->SetOwner(*request);
  request->guarded_.stream = std::move(stream);

  auto event = std::make_unique<CmIdEvent>(*this, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
  event->id = request;
  event->listen_id = this;
  CopyTerms(message, *event);
  PostEvent(std::move(event));
  ++guarded_.waiting_requests;
  return true;
}

CmIdEvent::CmIdEvent(CmId& subject, rdma_cm_event_type type, int error)
    : rdma_cm_event{}, held(&subject) {
  id = &subject;
  event = type;
  status = error;
  param.conn.private_data = nullptr;
}

std::unique_ptr<CmIdChannel> CmIdChannel::Create() {
  // A semaphore: each read takes one event's count.
  const int counter = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (counter < 0) return nullptr;
  std::unique_ptr<CmIdChannel> channel(new CmIdChannel);
  channel->fd = counter;
  return channel;
}

CmIdChannel::~CmIdChannel() { close(fd); }

void CmIdChannel::Post(std::unique_ptr<CmIdEvent> event) {
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  // Its limit is 2^64 - 2 events.
  const ssize_t written = write(fd, &one, sizeof(one));
  VERBENA_CHECK(written == sizeof(one)) << "errno " << errno;
}

std::unique_ptr<CmIdEvent> CmIdChannel::Pop() {
  if (events_.empty()) return nullptr;
  std::unique_ptr<CmIdEvent> event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::deque<std::unique_ptr<CmIdEvent>> CmIdChannel::Remove(const CmId& id) {
  std::deque<std::unique_ptr<CmIdEvent>> removed;
  std::deque<std::unique_ptr<CmIdEvent>> kept;
  for (std::unique_ptr<CmIdEvent>& event : events_) {
    (event->held == &id ? removed : kept).push_back(std::move(event));
  }
  events_ = std::move(kept);
  // A thread in Wait may have taken a count already: then there is none, and that thread looks
  // again.
  for (size_t i = 0; i < removed.size() && TakeCount(); ++i) {
  }
  return removed;
}

// The lock is held, and a thread in Wait may be faster at any time: so poll() proves nothing, and a
// read that waits would keep the lock for ever.
bool CmIdChannel::TakeCount() const {
  uint64_t count;
  const iovec room{.iov_base = &count, .iov_len = sizeof(count)};
  const ssize_t got = preadv2(fd, &room, 1, /*offset=*/-1, RWF_NOWAIT);
  if (got >= 0 || errno != EOPNOTSUPP) return got == sizeof(count);
  // Linux before 5.8 has no such read of an eventfd.
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) == 1 && Wait() == 0;
}

int CmIdChannel::Wait() const {
  uint64_t count;
  return read(fd, &count, sizeof(count)) == sizeof(count) ? 0 : errno;
}

const CmDevices& CmDevices::Get() {
  static const CmDevices& devices = *new CmDevices;
  return devices;
}

CmDevices::CmDevices() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (list == nullptr) return;
  for (int i = 0; i < count; ++i) {
    ibv_context* const verbs = ibv_open_device(list[i]);
    if (verbs == nullptr) continue;
    ibv_device_attr attributes = {};
    ibv_pd* const pd = ibv_alloc_pd(verbs);
    ibv_gid gid = {};
    if (pd == nullptr || ibv_query_device(verbs, &attributes) != 0 ||
        ibv_query_gid(verbs, kPort, kGidIndex, &gid) != 0) {
      if (pd != nullptr) ibv_dealloc_pd(pd);
      ibv_close_device(verbs);
      continue;
    }
    devices_.push_back({.verbs = verbs,
                        .pd = pd,
                        .gid = gid,
                        .responder_resources = AtMost255(attributes.max_qp_rd_atom),
                        .initiator_depth = AtMost255(attributes.max_qp_init_rd_atom)});
  }
  ibv_free_device_list(list);
}

void CmDevices::Bind(rdma_cm_id& id) const {
  VERBENA_CHECK(!devices_.empty()) << "an id is bound, and there is no device";
  id.verbs = devices_.front().verbs;
  id.pd = devices_.front().pd;
  id.port_num = kPort;
}

const CmDevices::Device& CmDevices::Of(const rdma_cm_id& id) const {
  const auto found = std::ranges::find(devices_, id.verbs, &Device::verbs);
  VERBENA_CHECK(found != devices_.end()) << "an id that was not bound";
  return *found;
}

int CmDevices::Describe(const rdma_cm_id& id, CmMessage& message) {
  ibv_gid gid;
  ibv_port_attr port = {};
  if (ibv_query_gid(id.verbs, id.port_num, kGidIndex, &gid) != 0) return EIO;
  if (const int error = ibv_query_port(id.verbs, id.port_num, &port); error != 0) return error;
  std::copy_n(gid.raw, sizeof(gid.raw), message.gid.begin());
  message.lid = port.lid;
  message.mtu = static_cast<uint8_t>(port.active_mtu);
  return 0;
}

}  // namespace verbena::internal::preload
