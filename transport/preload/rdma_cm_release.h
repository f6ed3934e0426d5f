// The end of ids.

#ifndef VERBENA_TRANSPORT_PRELOAD_RDMA_CM_RELEASE_H_
#define VERBENA_TRANSPORT_PRELOAD_RDMA_CM_RELEASE_H_

#include "verbena/transport/preload/rdma_cm_id.h"

namespace verbena::internal::preload {

// Waits until the program has acknowledged every event that it got of `id`.
void WaitUntilAcknowledged(CmId& id);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_RDMA_CM_RELEASE_H_
