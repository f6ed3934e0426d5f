// A BufferView as verbs posts it. Apart from buffer.h, which is free of verbs' headers.

#ifndef VERBENA_TRANSPORT_MEMORY_SCATTER_GATHER_H_
#define VERBENA_TRANSPORT_MEMORY_SCATTER_GATHER_H_

#include <infiniband/verbs.h>

#include <cassert>
#include <cstdint>
#include <limits>

#include "verbena/transport/memory/buffer.h"

namespace verbena {

// `view` is of a Buffer, and of less than 4 GiB.
inline ibv_sge ToSge(const BufferView& view) {
  assert(view.size() <= std::numeric_limits<uint32_t>::max());
  return {.addr = reinterpret_cast<uintptr_t>(view.data()),
          .length = static_cast<uint32_t>(view.size()),
          .lkey = view.lkey()};
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_SCATTER_GATHER_H_
