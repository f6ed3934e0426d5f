// CheckRegistered: whether a device can move memory that a user chose. Pure function.

#ifndef VERBENA_TRANSPORT_LINK_CHECK_REGISTERED_H_
#define VERBENA_TRANSPORT_LINK_CHECK_REGISTERED_H_

#include <infiniband/verbs.h>

#include "absl/status/status.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// Whether `view` lies in memory that is registered in the protection domain `pd` of `device`, which
// a link uses. INVALID_ARGUMENT for memory that is not registered at all. FAILED_PRECONDITION for
// memory of another device, or of a device that has failed and was opened again since: its keys are
// unknown there, or name other memory.
absl::Status CheckRegistered(const BufferView& view, const ibv_pd* pd, const Device& device);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_CHECK_REGISTERED_H_
