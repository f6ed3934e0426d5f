// RdmaCmStatus: a failure of rdma_cm, as one Status with one clear line.
//
// rdma_cm reports a failure as an event and a number. For REJECTED on InfiniBand and RoCE, the
// number is the reason of the CM's REJ message (InfiniBand specification, volume 1, 12.6.7.2);
// otherwise it is a negative errno. This is the only place that reads these numbers. A pure
// function, from any thread.
//
//   RdmaCmStatus(RDMA_CM_EVENT_REJECTED, 8, "", "rdma_cm to 10.0.0.2:4000")
//   -> UNAVAILABLE: rdma_cm to 10.0.0.2:4000: nobody listens there
//      (RDMA_CM_EVENT_REJECTED, status 8)

#ifndef VERBENA_TRANSPORT_CONNECT_RDMA_CM_STATUS_H_
#define VERBENA_TRANSPORT_CONNECT_RDMA_CM_STATUS_H_

#include <rdma/rdma_cma.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace verbena::internal {

// `event` is a failure. `private_data` came with it, as the peer sent it. `what` says what was
// tried, and with whom.
absl::Status RdmaCmStatus(rdma_cm_event_type event, int status, std::string_view private_data,
                          const std::string& what);

// A call of librdmacm that failed with `error`, a positive errno. `call` is its name.
absl::Status RdmaCmCallStatus(const char* call, int error, const std::string& what);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RDMA_CM_STATUS_H_
