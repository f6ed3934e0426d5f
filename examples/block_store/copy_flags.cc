#include "examples/block_store/copy_flags.h"

#include <cstdint>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "examples/block_store/limits.h"
#include "fmt/format.h"

ABSL_FLAG(int, in_flight, 16, "Requests that are under way at once.");
ABSL_FLAG(uint64_t, request_bytes, uint64_t{256} << 10, "What one request moves at most.");

namespace block_store {
namespace {

constexpr int kMaxInFlight = 1024;

}  // namespace

absl::StatusOr<CopyOptions> CopyOptionsFromFlags() {
  const CopyOptions options{.in_flight = absl::GetFlag(FLAGS_in_flight),
                            .request_bytes = absl::GetFlag(FLAGS_request_bytes)};
  if (options.in_flight < 1 || options.in_flight > kMaxInFlight) {
    return absl::InvalidArgumentError(
        fmt::format("--in_flight is {}, but must be 1 to {}", options.in_flight, kMaxInFlight));
  }
  if (options.request_bytes == 0 || options.request_bytes % kBlockBytes != 0 ||
      options.request_bytes > kMaxTransferBytes) {
    return absl::InvalidArgumentError(
        fmt::format("--request_bytes is {}, but must be a multiple of {} up to {}",
                    options.request_bytes, kBlockBytes, kMaxTransferBytes));
  }
  return options;
}

}  // namespace block_store
