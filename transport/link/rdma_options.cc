#include "verbena/transport/link/rdma_options.h"

#include <bit>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

absl::Status CheckRange(const char* name, uint32_t value, uint32_t low, uint32_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("RdmaOptions::{} is {}, but must be in [{}, {}]", name, value, low, high));
}

absl::Status CheckPathMtu(uint32_t bytes) {
  const bool known = std::has_single_bit(bytes) && bytes >= 256 && bytes <= 4096;
  if (bytes == 0 || known) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "RdmaOptions::path_mtu is {}, but must be 0 or one of 256, 512, 1024, 2048 and 4096", bytes));
}

}  // namespace

absl::Status CheckRdmaOptions(const RdmaOptions& options) {
  VERBENA_RETURN_IF_ERROR(CheckRange("traffic_class", options.traffic_class, 0, 255));
  VERBENA_RETURN_IF_ERROR(CheckRange("sl", options.sl, 0, 15));
  VERBENA_RETURN_IF_ERROR(CheckRange("flow_label", options.flow_label, 0, (1u << 20) - 1));
  VERBENA_RETURN_IF_ERROR(CheckRange("pkey_index", options.pkey_index, 0, 65535));
  VERBENA_RETURN_IF_ERROR(CheckPathMtu(options.path_mtu));
  // 0 would wait for ever.
  VERBENA_RETURN_IF_ERROR(CheckRange("timeout", options.timeout, 1, 31));
  return CheckRange("retry_cnt", options.retry_cnt, 0, 7);
}

}  // namespace verbena::internal
