// The queue pair of an id: its states, which librdmacm changes for the program, and their
// attributes.
//
// These functions call verbs, in the program's threads, without CmLoop's lock.

#ifndef VERBENA_TRANSPORT_PRELOAD_CM_CONNECT_H_
#define VERBENA_TRANSPORT_PRELOAD_CM_CONNECT_H_

#include <infiniband/verbs.h>

#include "verbena/transport/preload/cm_id.h"

namespace verbena::internal::preload {

// The attributes, and their mask, that take the queue pair of `id` to `attributes.qp_state`: INIT,
// RTR or RTS. 0, or EINVAL for another state or before the peer is known.
int CmQueuePairAttributes(CmId& id, ibv_qp_attr& attributes, int& mask);

// Each does nothing if the id has no queue pair. 0 or an errno.
int InitializeCmQueuePair(CmId& id);
int ConnectCmQueuePair(CmId& id);
// Flushes its work requests.
int BreakCmQueuePair(CmId& id);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_CM_CONNECT_H_
