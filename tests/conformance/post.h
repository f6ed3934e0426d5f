// Posts the plain WRs of objects.h through verbs, as one chain.

#ifndef VERBENA_TESTS_CONFORMANCE_POST_H_
#define VERBENA_TESTS_CONFORMANCE_POST_H_

#include <infiniband/verbs.h>

#include <span>

#include "tests/conformance/objects.h"

namespace verbena::internal::conformance {

PostResult PostSendChain(ibv_qp* qp, std::span<SendWr> wrs);
PostResult PostReceiveChain(ibv_qp* qp, std::span<RecvWr> wrs);
PostResult PostSrqReceiveChain(ibv_srq* srq, std::span<RecvWr> wrs);

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_POST_H_
