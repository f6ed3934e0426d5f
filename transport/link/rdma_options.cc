#include "verbena/transport/link/rdma_options.h"

#include "fmt/format.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

absl::Status CheckRange(const char* name, uint32_t value, uint32_t low, uint32_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("RdmaOptions::{} is {}, but must be in [{}, {}]", name, value, low, high));
}

}  // namespace

absl::Status CheckRdmaOptions(const RdmaOptions& options) {
  VERBENA_RETURN_IF_ERROR(CheckRange("traffic_class", options.traffic_class, 0, 255));
  VERBENA_RETURN_IF_ERROR(CheckRange("sl", options.sl, 0, 15));
  VERBENA_RETURN_IF_ERROR(CheckRange("flow_label", options.flow_label, 0, (1u << 20) - 1));
  // 0 would wait for ever.
  VERBENA_RETURN_IF_ERROR(CheckRange("timeout", options.timeout, 1, 31));
  return CheckRange("retry_cnt", options.retry_cnt, 0, 7);
}

}  // namespace verbena::internal
