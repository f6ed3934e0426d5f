#include "verbena/transport/soft/qp_transitions.h"

#include <cerrno>

namespace verbena::internal::soft {
namespace {

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

constexpr int kInitAttributes = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kServiceOptions = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH |
                                IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER;

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInitAttributes, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInitAttributes},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     kServiceOptions},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, kServiceOptions},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, kServiceOptions},
};

bool AttributesMakeSense(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PORT) != 0 && attributes.port_num != 1) return false;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attributes.pkey_index != 0) return false;
  if ((mask & IBV_QP_AV) != 0 &&
      // Without a GID, a LID names the device; 0 names none.
      ((attributes.ah_attr.is_global == 0 && attributes.ah_attr.dlid == 0) ||
       attributes.ah_attr.grh.sgid_index != 0 || attributes.ah_attr.port_num > 1)) {
    return false;
  }
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (attributes.path_mtu < IBV_MTU_256 || attributes.path_mtu > IBV_MTU_4096)) {
    return false;
  }
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attributes.rnr_retry > 7) return false;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attributes.retry_cnt > 7) return false;
  if ((mask & IBV_QP_TIMEOUT) != 0 && attributes.timeout > 31) return false;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attributes.min_rnr_timer > 31) return false;
  constexpr int kMaxReads = 16;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attributes.max_rd_atomic > kMaxReads) return false;
  return (mask & IBV_QP_MAX_DEST_RD_ATOMIC) == 0 || attributes.max_dest_rd_atomic <= kMaxReads;
}

}  // namespace

int CheckTransition(ibv_qp_state now, const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_CUR_STATE) != 0 && attributes.cur_qp_state != now) return EINVAL;
  const ibv_qp_state next = (mask & IBV_QP_STATE) != 0 ? attributes.qp_state : now;
  if (next == IBV_QPS_RESET || next == IBV_QPS_ERR) {
    return (mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE)) == 0 && (mask & IBV_QP_STATE) != 0 ? 0
                                                                                          : EINVAL;
  }
  for (const Transition& transition : kTransitions) {
    if (transition.from != now || transition.to != next) continue;
    const int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
    if ((given & transition.required) != transition.required) return EINVAL;
    if ((given & ~(transition.required | transition.optional)) != 0) return EINVAL;
    return AttributesMakeSense(attributes, mask) ? 0 : EINVAL;
  }
  return EINVAL;
}

}  // namespace verbena::internal::soft
