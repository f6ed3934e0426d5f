// CheckLocalMemory: whether a link's device can move memory of ours that a user chose.

#ifndef VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_
#define VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_

#include "absl/status/status.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// INVALID_ARGUMENT, which says why, when `view` cannot be written from (kWrite) or read into
// (kRead): it is registered elsewhere, or not for that.
absl::Status CheckLocalMemory(const Link& link, Transfer::Direction direction,
                              const BufferView& view);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_
