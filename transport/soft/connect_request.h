// ConnectRequest: a QP of ours that wants to reach one of a peer's, over whichever wire. A value.

#ifndef VERBENA_TRANSPORT_SOFT_CONNECT_REQUEST_H_
#define VERBENA_TRANSPORT_SOFT_CONNECT_REQUEST_H_

#include <cstdint>

#include "verbena/transport/soft/device_address.h"

namespace verbena::internal::soft {

struct ConnectRequest {
  uint32_t qpn = 0;
  DeviceAddress address{};
  uint32_t remote_qpn = 0;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_CONNECT_REQUEST_H_
