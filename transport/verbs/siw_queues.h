// CoverSiwQueueKey: keeps Soft-iWARP's queues off the one place where its provider refuses them.
//
// siw maps the queues of QPs, CQs and SRQs into the process from the device's file, each at the
// first pages that are free there. rdma-core's provider takes page 144 for "no queue", so the
// object whose queue would begin there is refused with EINVAL, and so is every later one: a process
// with one-page queues gets 71 QPs. A CQ that lies over that page is never refused, and nothing
// else can begin there while it lives.

#ifndef VERBENA_TRANSPORT_VERBS_SIW_QUEUES_H_
#define VERBENA_TRANSPORT_VERBS_SIW_QUEUES_H_

#include "verbena/transport/device/device.h"
#include "verbena/transport/device/handles.h"

namespace verbena::internal {

// Call before any other object of `device` is made, and keep the CQ. Empty for devices other than
// siw. Also empty if the CQ cannot be made: then siw may refuse queues as described above.
CqHandle CoverSiwQueueKey(Device& device);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_SIW_QUEUES_H_
