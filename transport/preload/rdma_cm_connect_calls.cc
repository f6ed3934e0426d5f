// Connections, as programs call them: from rdma_connect and rdma_listen to rdma_disconnect.

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "verbena/transport/preload/rdma_cm_addresses.h"
#include "verbena/transport/preload/rdma_cm_devices.h"
#include "verbena/transport/preload/rdma_cm_id.h"
#include "verbena/transport/preload/rdma_cm_queue_pair.h"
#include "verbena/transport/preload/rdma_cm_wait.h"

namespace verbena::internal::preload {
namespace {

// How long an attempt may take, with the time that the peer's program takes to decide (start).
constexpr auto kAnswerTime = std::chrono::seconds(60);
constexpr int kSmallestBacklog = 128;
constexpr int kLargestBacklog = 1024;

// The parameters of rdma_connect and rdma_accept if the program passes none.
rdma_conn_param DefaultParameters() {
  rdma_conn_param parameters = {};
  parameters.responder_resources = RDMA_MAX_RESP_RES;
  parameters.initiator_depth = RDMA_MAX_INIT_DEPTH;
  parameters.retry_count = 7;
  parameters.rnr_retry_count = 7;
  return parameters;
}

// Resolves "as many as possible", and checks the rest against the device. 0 or EINVAL.
int CheckParameters(const CmId& id, size_t private_limit, rdma_conn_param& parameters) {
  const CmDevices::Device& device = CmDevices::Get().Of(id);
  if (parameters.responder_resources == RDMA_MAX_RESP_RES) {
    parameters.responder_resources = device.responder_resources;
  }
  if (parameters.initiator_depth == RDMA_MAX_INIT_DEPTH) {
    parameters.initiator_depth = device.initiator_depth;
  }
  if (parameters.responder_resources > device.responder_resources ||
      parameters.initiator_depth > device.initiator_depth) {
    return EINVAL;
  }
  // A field of three bits.
  parameters.retry_count = std::min<uint8_t>(parameters.retry_count, 7);
  parameters.rnr_retry_count = std::min<uint8_t>(parameters.rnr_retry_count, 7);
  if (parameters.private_data == nullptr) parameters.private_data_len = 0;
  return parameters.private_data_len <= private_limit ? 0 : EINVAL;
}

void SetPrivateData(const void* data, uint8_t bytes, CmMessage& message) {
  message.private_bytes = bytes;
  if (bytes != 0) std::memcpy(message.private_data.data(), data, bytes);
}

// The request or reply that offers `parameters`. 0 or an errno.
int MakeOffer(CmId& id, CmKind kind, const rdma_conn_param& parameters, CmMessage& message) {
  message.kind = kind;
  if (const int error = CmDevices::Describe(id, message); error != 0) return error;
  message.qpn = (id.qp != nullptr ? id.qp->qp_num : parameters.qp_num) & 0xffffff;
  message.psn = id.guarded().terms.psn;
  message.responder_resources = parameters.responder_resources;
  message.initiator_depth = parameters.initiator_depth;
  message.retry_count = parameters.retry_count;
  message.rnr_retry_count = parameters.rnr_retry_count;
  message.flow_control = parameters.flow_control != 0;
  message.srq = id.qp != nullptr ? id.qp->srq != nullptr : parameters.srq != 0;
  SetPrivateData(parameters.private_data, parameters.private_data_len, message);
  return 0;
}

// Begins a TCP connection from the id's socket. Under the lock.
void StartConnecting(CmId& id, const CmMessage& request) {
  CmId::Guarded& guarded = id.guarded();
  guarded.state = CmState::kConnecting;
  guarded.terms.responder_resources = request.responder_resources;
  guarded.terms.initiator_depth = request.initiator_depth;
  guarded.terms.retry_count = request.retry_count;
  guarded.unsent_request = request;
  guarded.stream = std::make_unique<CmStream>(std::move(guarded.bound), id.route.addr.dst_addr, id);
  guarded.stream->SetTimeLimit(kAnswerTime);
}

int Reject(CmId& id, const void* data, uint8_t bytes, uint16_t reason) {
  CmMessage message;
  message.kind = CmKind::kReject;
  message.reason = reason;
  if (data == nullptr) bytes = 0;
  if (bytes > kCmRejectPrivateBytes) return CmFail(EINVAL);
  SetPrivateData(data, bytes, message);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  CmId::Guarded& guarded = id.guarded();
  if (guarded.state != CmState::kRequested && guarded.state != CmState::kReplied) {
    return CmFail(EINVAL);
  }
  guarded.stream->Send(message);
  guarded.stream.reset();
  guarded.state = CmState::kDisconnected;
  return 0;
}

// Our queue pair starts no more than its peer serves.
void LimitToPeer(CmTerms& terms) {
  terms.initiator_depth = std::min(terms.initiator_depth, terms.peer.responder_resources);
}

// The state that an id must be in, or EINVAL.
int CheckState(CmId& id, CmState state) {
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  return id.guarded().state == state ? 0 : EINVAL;
}

// Connects the queue pair by the terms of `reply`. 0 or an errno.
int PrepareToAccept(CmId& id, const CmMessage& reply) {
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    CmTerms& terms = id.guarded().terms;
    terms.responder_resources = reply.responder_resources;
    terms.initiator_depth = reply.initiator_depth;
    LimitToPeer(terms);
  }
  return ConnectCmQueuePair(id);
}

}  // namespace

void CmId::SendReady() {
  if (guarded_.state != CmState::kReplied) return;
  CmMessage message;
  message.kind = CmKind::kReady;
  guarded_.stream->Send(message);
  guarded_.state = CmState::kConnected;
}

}  // namespace verbena::internal::preload

extern "C" {

using namespace verbena::internal::preload;

int rdma_connect(rdma_cm_id* visible, rdma_conn_param* given) {
  CmId& id = Behind(visible);
  if (const int error = CheckState(id, CmState::kRouteResolved); error != 0) return CmFail(error);
  rdma_conn_param parameters = given != nullptr ? *given : DefaultParameters();
  CmMessage request;
  int error = CheckParameters(id, kCmRequestPrivateBytes, parameters);
  if (error == 0) error = MakeOffer(id, CmKind::kRequest, parameters, request);
  if (error != 0) return CmFail(error);
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    StartConnecting(id, request);
  }
  return CompleteCmCall(id);
}

int rdma_listen(rdma_cm_id* visible, int backlog) {
  CmId& id = Behind(visible);
  if (CheckState(id, CmState::kIdle) == 0) {
    sockaddr_in any = {};
    any.sin_family = AF_INET;
    if (rdma_bind_addr(visible, reinterpret_cast<sockaddr*>(&any)) != 0) return -1;
  }
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  CmId::Guarded& guarded = id.guarded();
  if (guarded.state != CmState::kBound) return CmFail(EINVAL);
  if (backlog <= 0) backlog = kLargestBacklog;
  guarded.backlog = std::clamp(backlog, kSmallestBacklog, kLargestBacklog);
  if (listen(guarded.bound.get(), guarded.backlog) != 0) return -1;
  guarded.acceptor = std::make_unique<CmAcceptor>(std::move(guarded.bound), id);
  guarded.state = CmState::kListening;
  return 0;
}

int rdma_get_request(rdma_cm_id* listening, rdma_cm_id** result) {
  CmId& listener = Behind(listening);
  if (result == nullptr || !listener.synchronous()) return CmFail(EINVAL);
  if (CompleteCmCall(listener) != 0) return -1;
  if (listening->event->event != RDMA_CM_EVENT_CONNECT_REQUEST) return CmFail(EINVAL);
  rdma_cm_id* const request = listening->event->id;
  std::optional<CmPassiveQp> passive_qp;
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    passive_qp = listener.guarded().passive_qp;
  }
  // CQs that rdma_create_qp makes are the new id's, so each takes a copy of what asks for them.
  if (rdma_migrate_id(request, nullptr) != 0 ||
      (passive_qp.has_value() && rdma_create_qp(request, passive_qp->pd, &passive_qp->init) != 0)) {
    const int error = errno;
    rdma_destroy_id(request);
    return CmFail(error);
  }
  request->event = std::exchange(listening->event, nullptr);
  *result = request;
  return 0;
}

int rdma_accept(rdma_cm_id* visible, rdma_conn_param* given) {
  CmId& id = Behind(visible);
  // The active side may finish by this call, too, if it has no queue pair of the library's.
  if (CheckState(id, CmState::kReplied) == 0) return rdma_establish(visible);
  if (const int error = CheckState(id, CmState::kRequested); error != 0) return CmFail(error);
  rdma_conn_param parameters = given != nullptr ? *given : DefaultParameters();
  CmMessage reply;
  int error = CheckParameters(id, kCmReplyPrivateBytes, parameters);
  if (error == 0) error = MakeOffer(id, CmKind::kReply, parameters, reply);
  if (error == 0) error = PrepareToAccept(id, reply);
  if (error != 0) return CmFail(error);
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    CmId::Guarded& guarded = id.guarded();
    // The peer left meanwhile; its event is in the channel.
    if (guarded.state != CmState::kRequested) return CmFail(ECONNRESET);
    guarded.stream->Send(reply);
    guarded.stream->SetTimeLimit(kAnswerTime);
    guarded.state = CmState::kAccepted;
  }
  return CompleteCmCall(id);
}

int rdma_establish(rdma_cm_id* visible) {
  CmId& id = Behind(visible);
  if (id.qp != nullptr) return CmFail(EINVAL);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  if (id.guarded().state != CmState::kReplied) return CmFail(EINVAL);
  id.SendReady();
  return 0;
}

int rdma_reject(rdma_cm_id* id, const void* data, uint8_t bytes) {
  return Reject(Behind(id), data, bytes, kCmConsumerDefined);
}

int rdma_reject_ece(rdma_cm_id* id, const void* data, uint8_t bytes) {
  return Reject(Behind(id), data, bytes, kCmVendorOption);
}

int rdma_disconnect(rdma_cm_id* visible) {
  CmId& id = Behind(visible);
  bool event_follows = false;
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    CmId::Guarded& guarded = id.guarded();
    const CmState state = guarded.state;
    if (state != CmState::kConnected && state != CmState::kAccepted && state != CmState::kReplied &&
        state != CmState::kDisconnected) {
      return CmFail(EINVAL);
    }
    // The peer may have been first: its event is in the channel, or the program has it.
    if (state != CmState::kDisconnected) {
      id.Close(CmKind::kDisconnect);
      id.Post(RDMA_CM_EVENT_DISCONNECTED, 0);
      event_follows = true;
    }
  }
  if (const int error = BreakCmQueuePair(id); error != 0) return CmFail(error);
  return event_follows ? CompleteCmCall(id) : 0;
}

int rdma_notify(rdma_cm_id* visible, ibv_event_type event) {
  if (event != IBV_EVENT_COMM_EST) return CmFail(EINVAL);
  CmId& id = Behind(visible);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  CmId::Guarded& guarded = id.guarded();
  if (guarded.state == CmState::kConnected) return CmFail(EISCONN);
  if (guarded.state != CmState::kAccepted) return CmFail(EINVAL);
  guarded.stream->ClearTimeLimit();
  guarded.notified = true;
  guarded.state = CmState::kConnected;
  id.Post(RDMA_CM_EVENT_ESTABLISHED, 0);
  return 0;
}

}  // extern "C"
