#include "verbena/transport/verbs/siw_queues.h"

#include <cstdint>

namespace verbena {
namespace {

// In the kernel's include/uapi/rdma/siw-abi.h: SIW_VENDOR_ID.
constexpr uint32_t kSiwVendorId = 0x626d74;

// 32 bytes each (struct siw_cqe): 256 pages from the first one on, a mebibyte of the kernel's.
constexpr int kEntries = 32768;

}  // namespace

CqHandle CoverSiwQueueKey(Device& device) {
  if (device.attributes().vendor_id != kSiwVendorId) return {};
  absl::StatusOr<ibv_cq*> cq = device.CreateCq(kEntries, nullptr, nullptr);
  return cq.ok() ? CqHandle(device, *cq) : CqHandle();
}

}  // namespace verbena
