#include "verbena/transport/preload/rdma_cm_id.h"

#include <sys/socket.h>

#include <algorithm>
#include <random>
#include <utility>

#include "verbena/transport/base/log.h"
#include "verbena/transport/preload/rdma_cm_addresses.h"
#include "verbena/transport/preload/rdma_cm_devices.h"

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

}  // namespace

int CmRefuse(const char* why) {
  Log(LogLevel::kWarning, why);
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
  ibv_gid named = {};
  std::ranges::copy(message.gid, named.raw);
  // The program's device would connect to whatever address a stranger names.
  if (!MayNameGid(stream->fd(), CmDevices::Get().devices().front().gid, named)) {
    return false;
  }
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

}  // namespace verbena::internal::preload
