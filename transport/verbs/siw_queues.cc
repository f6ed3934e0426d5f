#include "verbena/transport/verbs/siw_queues.h"

#include "verbena/transport/verbs/siw.h"

namespace verbena::internal {
namespace {

// 32 bytes each (struct siw_cqe): 256 pages from the first one on, a mebibyte of the kernel's.
constexpr int kEntries = 32768;

}  // namespace

CqHandle CoverSiwQueueKey(Device& device) {
  if (!IsSiw(device)) return {};
  absl::StatusOr<ibv_cq*> cq = device.CreateCq(kEntries, nullptr, nullptr);
  return cq.ok() ? CqHandle(device, *cq) : CqHandle();
}

}  // namespace verbena::internal
