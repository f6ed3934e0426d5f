// CheckLocalMemory: whether a link's device can move memory of ours that a user chose.

#ifndef VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_
#define VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_

#include "absl/status/status.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// As CheckRegistered(), and INVALID_ARGUMENT when `view` is not registered to be a WRITE's source
// (kWrite), or to be filled by a READ (kRead).
absl::Status CheckLocalMemory(const Link& link, Transfer::Direction direction,
                              const BufferView& view);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LOCAL_MEMORY_H_
