// CheckLocalMemory: whether a link's device can move memory of ours that a user chose.

#ifndef VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_
#define VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_

#include "absl/status/status.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// Whether `view` lies in memory that is registered in the protection domain `pd` of `device`, which
// a link uses. INVALID_ARGUMENT for memory that is not registered at all, FAILED_PRECONDITION for
// another device's, or for that of a device which has failed and was opened again since: its keys
// mean nothing there, or something else.
absl::Status CheckRegistered(const BufferView& view, const ibv_pd* pd, const Device& device);

// The same, and INVALID_ARGUMENT when `view` is not registered for being written from (kWrite), or
// read into (kRead).
absl::Status CheckLocalMemory(const Link& link, Transfer::Direction direction,
                              const BufferView& view);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_
