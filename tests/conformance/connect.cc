#include "tests/conformance/connect.h"

#include <algorithm>

#include "tests/conformance/must.h"

namespace verbena::internal::conformance {
namespace {

constexpr uint32_t kFirstPsn = 0x1234;

// Moves the QP to the state in which receives can be posted: rdma_cm leaves that to its user.
void PrepareManagedQp(const End& end, const LinkOptions& options, std::source_location where) {
  Transition init = ToInit(options);
  init.mask &= ~IBV_QP_PKEY_INDEX;  // iWARP has none
  Must(end.host().ModifyQp(end.qp, init.attributes, init.mask), where);
}

CmOptions ManagedOptions(const End& peer, const LinkOptions& options) {
  return {.peer_qpn = peer.qp.number,
          .reads_served = options.max_dest_rd_atomic,
          .reads_started = options.max_rd_atomic};
}

// `near` is the client, which on iWARP should be the first to send.
void ConnectManagedQps(End& near, End& far, const LinkOptions& options,
                       std::source_location where) {
  for (const End* end : {&near, &far}) PrepareManagedQp(*end, options, where);
  const RdmaCmService service =
      Must(far.host().CmExpect(far.qp, ManagedOptions(near, options)), where);
  Must(near.host().CmRequest(near.qp, ManagedOptions(far, options), service), where);
  for (const End* end : {&far, &near}) Must(end->host().CmJoin(end->qp), where);
  for (const End* end : {&far, &near}) Must(end->host().CmAwaitEstablished(end->qp), where);
}

}  // namespace

Transition ToInit(const LinkOptions& options) {
  Transition step;
  step.attributes.qp_state = IBV_QPS_INIT;
  step.attributes.pkey_index = 0;
  step.attributes.port_num = 1;
  step.attributes.qp_access_flags = static_cast<unsigned>(options.qp_access);
  step.mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  return step;
}

Transition ToReadyToReceive(const End& self, const End& peer, const LinkOptions& options) {
  Transition step;
  step.attributes.qp_state = IBV_QPS_RTR;
  step.attributes.path_mtu = std::min(self.info().port.active_mtu, peer.info().port.active_mtu);
  step.attributes.dest_qp_num = peer.qp.number;
  step.attributes.rq_psn = kFirstPsn;
  step.attributes.max_dest_rd_atomic = options.max_dest_rd_atomic;
  step.attributes.min_rnr_timer = options.min_rnr_timer;
  step.attributes.ah_attr.is_global = 1;
  step.attributes.ah_attr.dlid = peer.info().port.lid;
  step.attributes.ah_attr.port_num = 1;
  step.attributes.ah_attr.grh.dgid = peer.info().gid;
  step.attributes.ah_attr.grh.sgid_index = self.info().gid_index;
  step.attributes.ah_attr.grh.hop_limit = 64;
  step.mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return step;
}

Transition ToReadyToSend(const LinkOptions& options) {
  Transition step;
  step.attributes.qp_state = IBV_QPS_RTS;
  step.attributes.timeout = options.timeout;
  step.attributes.retry_cnt = options.retry_count;
  step.attributes.rnr_retry = options.rnr_retry;
  step.attributes.sq_psn = kFirstPsn;
  step.attributes.max_rd_atomic = options.max_rd_atomic;
  step.mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
              IBV_QP_MAX_QP_RD_ATOMIC;
  return step;
}

void ConnectQps(End& near, End& far, const LinkOptions& options, std::source_location where) {
  if (near.info().iwarp) return ConnectManagedQps(near, far, options, where);
  const Transition init = ToInit(options);
  const Transition send = ToReadyToSend(options);
  for (auto [self, peer] : {std::pair(&near, &far), std::pair(&far, &near)}) {
    const Transition receive = ToReadyToReceive(*self, *peer, options);
    Must(self->host().ModifyQp(self->qp, init.attributes, init.mask), where);
    Must(self->host().ModifyQp(self->qp, receive.attributes, receive.mask), where);
  }
  for (End* end : {&near, &far}) {
    Must(end->host().ModifyQp(end->qp, send.attributes, send.mask), where);
  }
}

}  // namespace verbena::internal::conformance
