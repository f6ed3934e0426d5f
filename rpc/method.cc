#include "verbena/rpc/call.h"

namespace verbena::internal {

uint32_t MethodIndex::Assign() const {
  static std::atomic<uint32_t> last{0};
  const uint32_t fresh = last.fetch_add(1, std::memory_order_relaxed) + 1;
  uint32_t value = 0;
  // Another thread may have been first.
  return value_.compare_exchange_strong(value, fresh, std::memory_order_relaxed) ? fresh : value;
}

}  // namespace verbena::internal
