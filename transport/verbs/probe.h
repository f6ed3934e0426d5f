// ProbeCapabilities: tries once what ibv_device_attr does not say.
//
// Nothing is sent: objects are created, modified and destroyed. Capabilities that only traffic
// could show (immediates, RNR NAK, checks of remote keys) follow from the transport's
// specification.

#ifndef VERBENA_TRANSPORT_VERBS_PROBE_H_
#define VERBENA_TRANSPORT_VERBS_PROBE_H_

#include "verbena/transport/device/device.h"

namespace verbena::internal {

// `device` is open, its async fd non-blocking, and used by nobody else yet. Takes at least
// 100 ms on a device that does not raise IBV_EVENT_QP_LAST_WQE_REACHED, and as long again on a
// device that does not flush what is posted in ERR.
DeviceCapabilities ProbeCapabilities(Device& device);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_PROBE_H_
