#include "verbena/transport/link/limits.h"

#include <algorithm>

#include "fmt/format.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/memory/size_class.h"

namespace verbena {
namespace {

absl::Status OutOfRange(const char* name, uint64_t value, uint64_t low, uint64_t high) {
  return absl::InvalidArgumentError(
      fmt::format("{} is {}, but must be in [{}, {}]", name, value, low, high));
}

absl::Status CheckRanges(const LinkLimits& limits) {
  if (limits.max_links < 1 || limits.max_links > 65536) {
    return OutOfRange("max_links", limits.max_links, 1, 65536);
  }
  if (limits.eager_bytes < 1024 || limits.eager_bytes > (1u << 20)) {
    return OutOfRange("eager_bytes", limits.eager_bytes, 1024, 1u << 20);
  }
  if (limits.eager_bytes % 64 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("eager_bytes is {}, but must be a multiple of 64", limits.eager_bytes));
  }
  if (limits.initial_credits < 1 || limits.initial_credits > kMaxWindow) {
    return OutOfRange("initial_credits", limits.initial_credits, 1, kMaxWindow);
  }
  if (limits.max_credits < limits.initial_credits || limits.max_credits > kMaxWindow) {
    return OutOfRange("max_credits", limits.max_credits, limits.initial_credits, kMaxWindow);
  }
  if (limits.send_queue_depth < 4 * kSignalInterval || limits.send_queue_depth > 4096) {
    return OutOfRange("send_queue_depth", limits.send_queue_depth, 4 * kSignalInterval, 4096);
  }
  if (limits.send_buffers < 16)
    return OutOfRange("send_buffers", limits.send_buffers, 16, 1u << 20);
  if (limits.leases.windows_per_link < 16 || limits.leases.windows_per_link > 4096) {
    return OutOfRange("leases.windows_per_link", limits.leases.windows_per_link, 16, 4096);
  }
  if (limits.max_payload_bytes < 1 || limits.max_payload_bytes > kMaxBufferBytes) {
    return OutOfRange("max_payload_bytes", limits.max_payload_bytes, 1, kMaxBufferBytes);
  }
  return absl::OkStatus();
}

// Windows that do not check what they should are no better than regions.
absl::StatusOr<LeaseLevel> DeriveLevel(LeaseLevel wanted, const Device& device) {
  if (wanted == LeaseLevel::kStrict && !device.capabilities().memory_windows) {
    return absl::UnimplementedError(
        fmt::format("{} has no type-2 memory windows, which strict leases are made of; ask for "
                    "region, or auto",
                    device.name()));
  }
  if (wanted != LeaseLevel::kAuto) return wanted;
  return device.capabilities().windows_checked ? LeaseLevel::kStrict : LeaseLevel::kRegion;
}

}  // namespace

absl::StatusOr<LinkLimits> DeriveLimits(const LinkLimits& wanted, const Device& device) {
  if (absl::Status status = CheckRanges(wanted); !status.ok()) return status;
  if (!device.capabilities().srq) {
    return absl::UnimplementedError(
        fmt::format("{} has no shared receive queues, on which links receive", device.name()));
  }
  LinkLimits limits = wanted;
  absl::StatusOr<LeaseLevel> level = DeriveLevel(wanted.leases.level, device);
  if (!level.ok()) return level.status();
  limits.leases.level = *level;
  if (limits.leases.largest_grant_bytes == 0) {
    const bool shared_memory = device.kind() == DeviceKind::kSoft;
    limits.leases.largest_grant_bytes = shared_memory ? size_t{16} << 10 : limits.max_payload_bytes;
  }
  const ibv_device_attr& attributes = device.attributes();
  limits.srq_depth =
      std::min(limits.srq_depth, static_cast<uint32_t>(std::max(attributes.max_srq_wr, 1)));
  const uint32_t max_qp_wr =
      std::max(static_cast<uint32_t>(std::max(attributes.max_qp_wr, 0)), 1 + kDrainMarkers);
  limits.send_queue_depth = std::min(limits.send_queue_depth, max_qp_wr - kDrainMarkers);
  const auto max_cqe = static_cast<uint32_t>(std::max(attributes.max_cqe, 1));
  while (CompletionQueueEntries(limits) > max_cqe && limits.max_links > 1) limits.max_links /= 2;
  const uint32_t receives_per_link = limits.initial_credits + kReserveCredits;
  limits.max_links =
      std::min(limits.max_links,
               (std::max(limits.srq_depth, kRepostBatch) - kRepostBatch) / receives_per_link);
  if (limits.max_links == 0 || CompletionQueueEntries(limits) > max_cqe) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} is too small for one link: max_cqe {}, max_srq_wr {}, max_qp_wr {}", device.name(),
        attributes.max_cqe, attributes.max_srq_wr, attributes.max_qp_wr));
  }
  if (limits.max_links != wanted.max_links || limits.srq_depth != wanted.srq_depth ||
      limits.send_queue_depth != wanted.send_queue_depth) {
    Log(LogLevel::kWarning,
        fmt::format("{} limits links to {} (wanted {}), SRQ depth to {} (wanted {}), send queue "
                    "depth to {} (wanted {})",
                    device.name(), limits.max_links, wanted.max_links, limits.srq_depth,
                    wanted.srq_depth, limits.send_queue_depth, wanted.send_queue_depth));
  }
  return limits;
}

}  // namespace verbena
