#include "verbena/transport/memory/memory_region.h"

#include <infiniband/verbs.h>

namespace verbena {

MemoryRegion::MemoryRegion(char* data, size_t bytes, ibv_mr* mr, int access, Scheduler* home)
    : data_(data),
      bytes_(bytes),
      mr_(mr),
      access_(access),
      lkey_(mr->lkey),
      rkey_(mr->rkey),
      home_(home) {}

ibv_pd* MemoryRegion::pd() const { return mr_->pd; }

}  // namespace verbena
