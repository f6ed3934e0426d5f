// A BufferView as verbs posts it. Not part of buffer.h, which is free of verbs' headers.

#ifndef VERBENA_TRANSPORT_MEMORY_SCATTER_GATHER_H_
#define VERBENA_TRANSPORT_MEMORY_SCATTER_GATHER_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <limits>

#include "verbena/transport/base/check.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// Precondition: `view` is part of a Buffer, and smaller than 4 GiB.
inline ibv_sge ToSge(const BufferView& view) {
  VERBENA_CHECK(view.size() <= std::numeric_limits<uint32_t>::max()) << view.size() << " bytes";
  return {.addr = reinterpret_cast<uintptr_t>(view.data()),
          .length = static_cast<uint32_t>(view.size()),
          .lkey = view.lkey()};
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_SCATTER_GATHER_H_
