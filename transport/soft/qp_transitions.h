// The state machine of modify_qp for reliable connected QPs: which transitions exist, and which
// attributes each demands and allows.

#ifndef VERBENA_TRANSPORT_SOFT_QP_TRANSITIONS_H_
#define VERBENA_TRANSPORT_SOFT_QP_TRANSITIONS_H_

#include <infiniband/verbs.h>

namespace verbena::internal::soft {

// 0, or EINVAL when verbs forbids modify_qp(attributes, mask) in state `now`.
int CheckTransition(ibv_qp_state now, const ibv_qp_attr& attributes, int mask);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_QP_TRANSITIONS_H_
