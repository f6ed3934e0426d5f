#include "verbena/transport/preload/rdma_cm_queue_pair.h"

#include <rdma/rdma_verbs.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "verbena/transport/preload/rdma_cm_devices.h"

namespace verbena::internal::preload {
namespace {

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

using verbena::internal::preload::Behind;
using verbena::internal::preload::CmFail;
using verbena::internal::preload::CmId;

extern "C" {

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
