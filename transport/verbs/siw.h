// Soft-iWARP: tells its devices from others, for the faults of its kernel module and its provider.

#ifndef VERBENA_TRANSPORT_VERBS_SIW_H_
#define VERBENA_TRANSPORT_VERBS_SIW_H_

#include "verbena/transport/device/device.h"

namespace verbena::internal {

// By its vendor, in the kernel's include/uapi/rdma/siw-abi.h: SIW_VENDOR_ID.
inline bool IsSiw(const Device& device) { return device.attributes().vendor_id == 0x626d74; }

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_SIW_H_
