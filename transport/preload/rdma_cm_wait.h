// How ids without a channel of the program's wait: their calls return when the event is there.

#ifndef VERBENA_TRANSPORT_PRELOAD_RDMA_CM_WAIT_H_
#define VERBENA_TRANSPORT_PRELOAD_RDMA_CM_WAIT_H_

#include "verbena/transport/preload/rdma_cm_id.h"

namespace verbena::internal::preload {

// The end of a call that leads to an event. Returns 0 at once if the program gets events itself.
// Otherwise acknowledges the id's last event, waits for the next, leaves it in id.event, and
// returns 0, or -1 and errno if it tells of a failure.
int CompleteCmCall(CmId& id);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_RDMA_CM_WAIT_H_
