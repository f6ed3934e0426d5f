#include "verbena/transport/preload/cm_connect.h"

#include <rdma/rdma_verbs.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/preload/cm_id.h"

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
  guarded.stream = std::make_unique<CmStream>(std::move(guarded.bound),
                                              SocketAddress(id.route.addr.dst_addr), id);
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

// About 0.64 ms, in InfiniBand's encoding (start).
constexpr uint8_t kMinRnrTimer = 12;
constexpr uint8_t kHopLimit = 64;
constexpr uint32_t kLeastInline = 64;

bool PeerKnown(CmState state) {
  return state == CmState::kReplied || state == CmState::kRequested ||
         state == CmState::kAccepted || state == CmState::kConnected ||
         state == CmState::kDisconnected;
}

void SetInit(const CmId& id, ibv_qp_attr& attributes, int& mask) {
  attributes.port_num = id.port_num;
  attributes.pkey_index = 0;
  attributes.qp_access_flags =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
}

int SetReadyToReceive(const CmId& id, const CmTerms& terms, ibv_qp_attr& attributes, int& mask) {
  CmMessage own;
  if (const int error = CmDevices::Describe(id, own); error != 0) return error;
  attributes.ah_attr = {};
  attributes.ah_attr.is_global = 1;
  std::ranges::copy(terms.peer.gid, attributes.ah_attr.grh.dgid.raw);
  attributes.ah_attr.grh.hop_limit = kHopLimit;
  attributes.ah_attr.grh.traffic_class = terms.traffic_class;
  attributes.ah_attr.dlid = terms.peer.lid;
  attributes.ah_attr.port_num = id.port_num;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(own.mtu, terms.peer.mtu));
  attributes.dest_qp_num = terms.peer.qpn;
  attributes.rq_psn = terms.peer.psn;
  attributes.max_dest_rd_atomic = terms.responder_resources;
  attributes.min_rnr_timer = kMinRnrTimer;
  mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return 0;
}

void SetReadyToSend(const CmTerms& terms, ibv_qp_attr& attributes, int& mask) {
  attributes.timeout = terms.ack_timeout;
  attributes.retry_cnt = terms.retry_count;
  attributes.rnr_retry = terms.peer.rnr_retry_count;
  attributes.sq_psn = terms.psn;
  attributes.max_rd_atomic = terms.initiator_depth;
  mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
         IBV_QP_MAX_QP_RD_ATOMIC;
}

int Move(CmId& id, ibv_qp_state state) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = state;
  int mask = 0;
  if (const int error = CmQueuePairAttributes(id, attributes, mask); error != 0) return error;
  return ibv_modify_qp(id.qp, &attributes, mask);
}

// A completion queue of the library's own, for programs that name none.
ibv_cq* MakeCq(CmId& id, uint32_t entries, ibv_comp_channel** channel) {
  *channel = ibv_create_comp_channel(id.verbs);
  if (*channel == nullptr) return nullptr;
  // rdma_get_send_comp compares it with the program's pointer.
  rdma_cm_id* const visible = &id;
  ibv_cq* const cq =
      ibv_create_cq(id.verbs, static_cast<int>(std::max(entries, 1u)), visible, *channel, 0);
  if (cq == nullptr) {
    const int error = errno;
    ibv_destroy_comp_channel(*channel);
    *channel = nullptr;
    errno = error;
  }
  return cq;
}

void DestroyCq(ibv_cq** cq, ibv_comp_channel** channel) {
  if (*cq != nullptr) ibv_destroy_cq(*cq);
  if (*channel != nullptr) ibv_destroy_comp_channel(*channel);
  *cq = nullptr;
  *channel = nullptr;
}

void DestroyCqs(CmId& id) {
  DestroyCq(&id.recv_cq, &id.recv_cq_channel);
  DestroyCq(&id.send_cq, &id.send_cq_channel);
}

int MakeCqs(CmId& id, ibv_qp_init_attr_ex& init) {
  if (init.recv_cq == nullptr) {
    const uint32_t entries = std::max(init.cap.max_recv_wr, id.srq != nullptr ? 128u : 1u);
    id.recv_cq = MakeCq(id, entries, &id.recv_cq_channel);
    if (id.recv_cq == nullptr) return errno;
    init.recv_cq = id.recv_cq;
  }
  if (init.send_cq == nullptr) {
    id.send_cq = MakeCq(id, init.cap.max_send_wr, &id.send_cq_channel);
    if (id.send_cq == nullptr) return errno;
    init.send_cq = id.send_cq;
  }
  return 0;
}

ibv_qp* MakeQpAsAsked(const CmId& id, ibv_qp_init_attr_ex& init) {
  // The plain call serves devices without the extended one.
  if (init.comp_mask != IBV_QP_INIT_ATTR_PD) return ibv_create_qp_ex(id.verbs, &init);
  ibv_qp_init_attr plain = {};
  plain.qp_context = init.qp_context;
  plain.send_cq = init.send_cq;
  plain.recv_cq = init.recv_cq;
  plain.srq = init.srq;
  plain.cap = init.cap;
  plain.qp_type = init.qp_type;
  plain.sq_sig_all = init.sq_sig_all;
  ibv_qp* const qp = ibv_create_qp(init.pd, &plain);
  init.cap = plain.cap;
  return qp;
}

// Providers give some inline bytes unasked, and programs came to count on it: rdma_xclient is one.
// A device that has fewer gives what the program asks for.
ibv_qp* MakeQp(const CmId& id, ibv_qp_init_attr_ex& init) {
  const ibv_qp_cap asked = init.cap;
  init.cap.max_inline_data = std::max(asked.max_inline_data, kLeastInline);
  ibv_qp* const qp = MakeQpAsAsked(id, init);
  if (qp != nullptr || asked.max_inline_data >= kLeastInline) return qp;
  init.cap = asked;
  return MakeQpAsAsked(id, init);
}

}  // namespace

// Connections, as programs call them: from rdma_connect and rdma_listen to rdma_disconnect.

void CmId::SendReady() {
  if (guarded_.state != CmState::kReplied) return;
  VERBENA_CHECK(guarded_.stream != nullptr) << "an id that was answered has no connection";
  CmMessage message;
  message.kind = CmKind::kReady;
  guarded_.stream->Send(message);
  guarded_.state = CmState::kConnected;
}

}  // namespace verbena::internal::preload

using verbena::internal::preload::Behind;
using verbena::internal::preload::CmFail;
using verbena::internal::preload::CmId;

namespace verbena::internal::preload {

int CmQueuePairAttributes(CmId& id, ibv_qp_attr& attributes, int& mask) {
  if (id.verbs == nullptr) return EINVAL;
  CmTerms terms;
  bool known = false;
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    terms = id.guarded().terms;
    known = PeerKnown(id.guarded().state);
  }
  switch (attributes.qp_state) {
    case IBV_QPS_INIT:
      SetInit(id, attributes, mask);
      return 0;
    case IBV_QPS_RTR:
      return known ? SetReadyToReceive(id, terms, attributes, mask) : EINVAL;
    case IBV_QPS_RTS:
      if (!known) return EINVAL;
      SetReadyToSend(terms, attributes, mask);
      return 0;
    default:
      return EINVAL;
  }
}

int InitializeCmQueuePair(CmId& id) { return id.qp == nullptr ? 0 : Move(id, IBV_QPS_INIT); }

int ConnectCmQueuePair(CmId& id) {
  if (id.qp == nullptr) return 0;
  if (const int error = Move(id, IBV_QPS_RTR); error != 0) return error;
  return Move(id, IBV_QPS_RTS);
}

int BreakCmQueuePair(CmId& id) {
  if (id.qp == nullptr) return 0;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(id.qp, &attributes, IBV_QP_STATE);
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
  if (!guarded.acceptor->watched()) {
    const int error = errno;
    guarded.bound = guarded.acceptor->TakeSocket();
    guarded.acceptor.reset();
    return CmFail(error);
  }
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

int rdma_create_qp_ex(rdma_cm_id* visible, ibv_qp_init_attr_ex* init) {
  using namespace verbena::internal::preload;
  CmId& id = Behind(visible);
  if (id.qp != nullptr || init == nullptr || init->qp_type != IBV_QPT_RC) return CmFail(EINVAL);
  if ((init->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    init->comp_mask |= IBV_QP_INIT_ATTR_PD;
    init->pd = id.pd;
  }
  if (id.verbs == nullptr || init->pd == nullptr || init->pd->context != id.verbs) {
    return CmFail(EINVAL);
  }
  if (init->srq == nullptr) init->srq = id.srq;
  int error = MakeCqs(id, *init);
  if (error == 0) {
    id.qp = MakeQp(id, *init);
    error = id.qp == nullptr ? errno : InitializeCmQueuePair(id);
  }
  if (error != 0) {
    if (id.qp != nullptr) ibv_destroy_qp(id.qp);
    id.qp = nullptr;
    DestroyCqs(id);
    return CmFail(error);
  }
  id.pd = init->pd;
  return 0;
}

int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* init) {
  if (init == nullptr) return CmFail(EINVAL);
  ibv_qp_init_attr_ex extended = {};
  extended.qp_context = init->qp_context;
  extended.send_cq = init->send_cq;
  extended.recv_cq = init->recv_cq;
  extended.srq = init->srq;
  extended.cap = init->cap;
  extended.qp_type = init->qp_type;
  extended.sq_sig_all = init->sq_sig_all;
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd != nullptr ? pd : id->pd;
  const int result = rdma_create_qp_ex(id, &extended);
  // The caller may read these afterwards.
  init->cap = extended.cap;
  init->send_cq = extended.send_cq;
  init->recv_cq = extended.recv_cq;
  init->srq = extended.srq;
  return result;
}

void rdma_destroy_qp(rdma_cm_id* visible) {
  CmId& id = Behind(visible);
  if (id.qp != nullptr) ibv_destroy_qp(id.qp);
  id.qp = nullptr;
  verbena::internal::preload::DestroyCqs(id);
}

int rdma_create_srq_ex(rdma_cm_id* visible, ibv_srq_init_attr_ex* attributes) {
  if (attributes == nullptr || ((attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 &&
                                attributes->srq_type != IBV_SRQT_BASIC)) {
    return CmFail(EINVAL);
  }
  ibv_srq_init_attr plain = {};
  plain.srq_context = attributes->srq_context;
  plain.attr = attributes->attr;
  ibv_pd* const pd = (attributes->comp_mask & IBV_SRQ_INIT_ATTR_PD) != 0 ? attributes->pd : nullptr;
  const int result = rdma_create_srq(visible, pd, &plain);
  attributes->attr = plain.attr;
  return result;
}

int rdma_create_srq(rdma_cm_id* visible, ibv_pd* pd, ibv_srq_init_attr* attributes) {
  CmId& id = Behind(visible);
  if (pd == nullptr) pd = id.pd;
  if (id.srq != nullptr || attributes == nullptr || pd == nullptr ||
      (id.verbs != nullptr && pd->context != id.verbs)) {
    return CmFail(EINVAL);
  }
  id.srq = ibv_create_srq(pd, attributes);
  if (id.srq == nullptr) return -1;
  id.pd = pd;
  return 0;
}

void rdma_destroy_srq(rdma_cm_id* id) {
  if (id->srq != nullptr) ibv_destroy_srq(id->srq);
  id->srq = nullptr;
}

int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) {
  using namespace verbena::internal::preload;
  if (attributes == nullptr || mask == nullptr) return CmFail(EINVAL);
  const int error = CmQueuePairAttributes(Behind(id), *attributes, *mask);
  return error == 0 ? 0 : CmFail(error);
}

}  // extern "C"
