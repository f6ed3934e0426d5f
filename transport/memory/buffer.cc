#include "verbena/transport/memory/buffer.h"

#include <infiniband/verbs.h>

#include <utility>

namespace verbena::internal {

MemoryRegion::MemoryRegion(std::string device, char* data, size_t bytes, ibv_mr* mr, int access,
                           Scheduler* home)
    : device_(std::move(device)),
      data_(data),
      bytes_(bytes),
      mr_(mr),
      pd_(mr->pd),
      access_(access),
      lkey_(mr->lkey),
      rkey_(mr->rkey),
      home_(home) {}

}  // namespace verbena::internal
