#include "verbena/transport/link/limits.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena {

LinkLimits LinkLimits::Small() { return internal::WithSmallSizes(LinkLimits()); }

namespace internal {
namespace {

// What a queue of mlx5 takes of the process's memory: entries of 64 bytes, as many as the next
// power of two, and a page for its doorbell.
uint64_t NicQueueBytes(uint64_t entries) { return std::bit_ceil(entries) * 64 + 4096; }

// The send queue of a link (kMaxInlineBytesOnRdma says how it comes to 32 KiB), and its doorbell.
constexpr uint64_t kNicSendQueueBytes = (32 << 10) + 4096;

// For the words of atomic operations, and the rest of a page in each region.
constexpr uint64_t kSmallRegions = 4 * 4096;

absl::Status OutOfRange(const char* name, uint64_t value, uint64_t low, uint64_t high) {
  return absl::InvalidArgumentError(
      fmt::format("LinkLimits::{} is {}, but must be in [{}, {}]", name, value, low, high));
}

int64_t Nanoseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

absl::Status NotPositive(const char* name, Duration value) {
  return absl::InvalidArgumentError(
      fmt::format("LinkLimits::{} is {} ns, but must be positive", name, Nanoseconds(value)));
}

absl::Status CheckDurations(const LinkLimits& limits) {
  if (limits.ping_interval <= Duration::zero()) {
    return NotPositive("ping_interval", limits.ping_interval);
  }
  if (limits.connect_timeout <= Duration::zero()) {
    return NotPositive("connect_timeout", limits.connect_timeout);
  }
  if (limits.longest_reconnect_pause < std::chrono::milliseconds(10) ||
      limits.longest_reconnect_pause > std::chrono::minutes(1)) {
    return absl::InvalidArgumentError(
        fmt::format("LinkLimits::longest_reconnect_pause is {} ns, but must be in [10 ms, 1 min]",
                    Nanoseconds(limits.longest_reconnect_pause)));
  }
  if (limits.idle_timeout < Duration::zero()) {
    return absl::InvalidArgumentError(
        fmt::format("LinkLimits::idle_timeout is {} ns, but must not be negative; 0 is for never",
                    Nanoseconds(limits.idle_timeout)));
  }
  if (limits.keep_alive_interval != Duration::zero() &&
      limits.keep_alive_interval < limits.ping_interval) {
    return absl::InvalidArgumentError(
        fmt::format("LinkLimits::keep_alive_interval is {} ns, but must be 0, which is off, or at "
                    "least ping_interval ({} ns)",
                    Nanoseconds(limits.keep_alive_interval), Nanoseconds(limits.ping_interval)));
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const LinkLimits& limits) {
  if (limits.max_links < 1 || limits.max_links > 65536) {
    return OutOfRange("max_links", limits.max_links, 1, 65536);
  }
  if (limits.eager_bytes < 1024 || limits.eager_bytes > (1u << 20)) {
    return OutOfRange("eager_bytes", limits.eager_bytes, 1024, 1u << 20);
  }
  if (limits.eager_bytes % 64 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "LinkLimits::eager_bytes is {}, but must be a multiple of 64", limits.eager_bytes));
  }
  if (limits.initial_credits < 1 || limits.initial_credits > kMaxWindow) {
    return OutOfRange("initial_credits", limits.initial_credits, 1, kMaxWindow);
  }
  if (limits.max_credits < limits.initial_credits || limits.max_credits > kMaxWindow) {
    return OutOfRange("max_credits", limits.max_credits, limits.initial_credits, kMaxWindow);
  }
  if (limits.send_queue_depth < 4 * kSignalInterval ||
      limits.send_queue_depth > kMaxSendQueueDepth) {
    return OutOfRange("send_queue_depth", limits.send_queue_depth, 4 * kSignalInterval,
                      kMaxSendQueueDepth);
  }
  if (limits.send_buffers < 16 || limits.send_buffers > (1u << 20)) {
    return OutOfRange("send_buffers", limits.send_buffers, 16, 1u << 20);
  }
  if (limits.receives_per_link < kMinReceivesPerLink || limits.receives_per_link > kMaxWindow) {
    return OutOfRange("receives_per_link", limits.receives_per_link, kMinReceivesPerLink,
                      kMaxWindow);
  }
  VERBENA_RETURN_IF_ERROR(CheckDurations(limits));
  if (limits.bulk.slice_bytes != 0 &&
      (limits.bulk.slice_bytes < 4096 || limits.bulk.slice_bytes > (1u << 30))) {
    return OutOfRange("bulk.slice_bytes", limits.bulk.slice_bytes, 4096, 1u << 30);
  }
  if (limits.bulk.bytes_ahead < std::max(limits.bulk.slice_bytes, 4096u)) {
    return OutOfRange("bulk.bytes_ahead", limits.bulk.bytes_ahead,
                      std::max(limits.bulk.slice_bytes, 4096u), UINT32_MAX);
  }
  if (limits.leases.windows_per_link < 16 || limits.leases.windows_per_link > 4096) {
    return OutOfRange("leases.windows_per_link", limits.leases.windows_per_link, 16, 4096);
  }
  if (limits.max_payload_bytes < 1 || limits.max_payload_bytes > kMaxBufferBytes) {
    return OutOfRange("max_payload_bytes", limits.max_payload_bytes, 1, kMaxBufferBytes);
  }
  // So messages in frames, whose size nobody looks at, are never over it.
  if (limits.max_message_bytes < limits.eager_bytes || limits.max_message_bytes > kMaxBufferBytes) {
    return OutOfRange("max_message_bytes", limits.max_message_bytes, limits.eager_bytes,
                      kMaxBufferBytes);
  }
  if (limits.largest_payload_in_frame > limits.eager_bytes) {
    return OutOfRange("largest_payload_in_frame", limits.largest_payload_in_frame, 0,
                      limits.eager_bytes);
  }
  return absl::OkStatus();
}

// Windows that do not check what they should are no better than regions.
absl::StatusOr<LeaseLevel> DeriveLevel(LeaseLevel wanted, const Device& device) {
  if (wanted == LeaseLevel::kStrict && !device.capabilities().memory_windows) {
    return absl::UnimplementedError(
        fmt::format("{} has no type-2 memory windows, which LeaseLevel::kStrict needs: set "
                    "LeaseLimits::level to kAuto or kRegion",
                    device.name()));
  }
  if (wanted != LeaseLevel::kAuto) return wanted;
  return device.capabilities().windows_checked ? LeaseLevel::kStrict : LeaseLevel::kRegion;
}

absl::Status TooSmall(const Device& device) {
  const ibv_device_attr& attributes = device.attributes();
  return absl::ResourceExhaustedError(
      fmt::format("{} is too small for one link: max_cqe {}, max_srq_wr {}, max_qp_wr {}",
                  device.name(), attributes.max_cqe, attributes.max_srq_wr, attributes.max_qp_wr));
}

uint32_t AtLeastOne(int attribute) { return static_cast<uint32_t>(std::max(attribute, 1)); }

// Fits the queues that all links share into `device`.
absl::Status FitSharedReceives(const Device& device, LinkLimits& limits) {
  const uint32_t max_srq_wr = AtLeastOne(device.attributes().max_srq_wr);
  const uint32_t all_cqe = AtLeastOne(device.attributes().max_cqe);
  // Set aside before anything else takes the room. The soft device drops no receives.
  const uint32_t spares =
      device.kind() == DeviceKind::kSoft
          ? 0
          : std::min(SpareReceivesOf(limits), std::min(max_srq_wr, all_cqe) / 8);
  limits.srq_depth = std::min(limits.srq_depth, max_srq_wr - spares);
  const uint32_t max_cqe = all_cqe - spares;
  // A completion queue that is small gives half of its entries to receives, at least.
  limits.srq_depth = std::min(limits.srq_depth, std::max(max_cqe / 2, 1u));
  limits.max_links = std::min(
      limits.max_links, (max_cqe - limits.srq_depth) / (limits.send_queue_depth + kDrainMarkers));
  const uint32_t receives_per_link = limits.initial_credits + kReserveCredits;
  limits.max_links =
      std::min(limits.max_links,
               (std::max(limits.srq_depth, kRepostBatch) - kRepostBatch) / receives_per_link);
  if (limits.max_links == 0 || CompletionQueueEntries(limits) > max_cqe) return TooSmall(device);
  return absl::OkStatus();
}

// Fits a receive queue for each link into `device`, and all of their receives into srq_depth.
absl::Status FitOwnReceives(const Device& device, LinkLimits& limits) {
  const uint32_t depth =
      std::min({limits.receives_per_link, limits.srq_depth,
                static_cast<uint32_t>(std::max(device.attributes().max_qp_wr, 0))});
  if (depth < kMinReceivesPerLink) return TooSmall(device);
  const uint32_t completions = limits.send_queue_depth + kDrainMarkers + depth;
  const uint32_t max_cqe = AtLeastOne(device.attributes().max_cqe);
  limits.max_links = std::min(
      {limits.max_links, std::min(limits.srq_depth, kMaxReceives) / depth, max_cqe / completions});
  if (limits.max_links == 0) return TooSmall(device);
  limits.receives_per_link = depth;
  limits.srq_depth = limits.max_links * depth;
  const uint32_t window = WindowOf(depth);
  limits.max_credits = std::min(limits.max_credits, window);
  limits.initial_credits = limits.max_credits;
  return absl::OkStatus();
}

}  // namespace

PinnedMemory PinnedMemoryOf(const LinkLimits& limits, bool emulated) {
  const uint64_t stride = limits.eager_bytes + kReceiveStridePadding;
  const uint64_t receives = uint64_t{limits.srq_depth} + SpareReceivesOf(limits);
  PinnedMemory pinned = {.at_start = (receives + limits.send_buffers) * stride + kSmallRegions,
                         .payloads = limits.memory.send_bytes + limits.memory.receive_bytes +
                                     limits.memory.landing_bytes};
  if (emulated) return pinned;
  pinned.at_start += NicQueueBytes(receives) +
                     NicQueueBytes(CompletionQueueEntries(limits) + SpareReceivesOf(limits));
  pinned.links = limits.max_links * kNicSendQueueBytes;
  return pinned;
}

bool HasDefaultSizes(const LinkLimits& limits) {
  const LinkLimits normal;
  return limits.max_links == normal.max_links && limits.srq_depth == normal.srq_depth &&
         limits.eager_bytes == normal.eager_bytes &&
         limits.initial_credits == normal.initial_credits &&
         limits.send_queue_depth == normal.send_queue_depth &&
         limits.send_buffers == normal.send_buffers &&
         limits.leases.granted_bytes_per_client == normal.leases.granted_bytes_per_client &&
         limits.memory.send_bytes == normal.memory.send_bytes &&
         limits.memory.receive_bytes == normal.memory.receive_bytes &&
         limits.memory.landing_bytes == normal.memory.landing_bytes &&
         limits.max_payload_bytes == normal.max_payload_bytes &&
         limits.max_message_bytes == normal.max_message_bytes;
}

// 480 receives and 128 send buffers of 4,672 bytes are 2.9 MB. (start) No NIC has been measured.
LinkLimits WithSmallSizes(const LinkLimits& limits) {
  constexpr size_t kBudget = size_t{1} << 20;
  LinkLimits small = limits;
  small.max_links = 32;
  // A link's first credits and its reserve, and 112 more to borrow.
  small.srq_depth = 320;
  // As many as let each link find a first one.
  small.send_buffers = 128;
  small.leases.granted_bytes_per_client = kBudget / 4;
  small.leases.quarantine_bytes = std::min(limits.leases.quarantine_bytes, kBudget);
  small.memory = {.send_bytes = kBudget, .receive_bytes = kBudget, .landing_bytes = kBudget};
  small.max_payload_bytes = kBudget;
  small.max_message_bytes = kBudget;
  return small;
}

uint32_t DefaultPayloadInFrame(const Device& device) {
  if (device.kind() == DeviceKind::kSoft) return kPayloadInFrameSoft;
  return device.capabilities().emulated ? kPayloadInFrameEmulated : kPayloadInFrameHardware;
}

absl::StatusOr<LinkLimits> DeriveLimits(const LinkLimits& wanted, const Device& device,
                                        bool over_tcp) {
  VERBENA_RETURN_IF_ERROR(CheckRanges(wanted));
  LinkLimits limits = wanted;
  VERBENA_ASSIGN_OR_RETURN(LeaseLevel level, DeriveLevel(wanted.leases.level, device));
  limits.leases.level = level;
  const bool soft = device.kind() == DeviceKind::kSoft;
  if (limits.bulk.slice_bytes == 0) {
    const uint32_t favoured = soft ? 256u << 10 : 64u << 10;
    limits.bulk.slice_bytes = std::min(favoured, limits.bulk.bytes_ahead);
  }
  if (limits.leases.largest_grant_bytes == 0) {
    const bool shared_memory = soft && !over_tcp;
    limits.leases.largest_grant_bytes = shared_memory ? size_t{16} << 10 : limits.max_payload_bytes;
  }
  if (limits.largest_payload_in_frame == 0) {
    limits.largest_payload_in_frame = std::min(DefaultPayloadInFrame(device), limits.eager_bytes);
  }
  const uint32_t max_qp_wr = std::max(
      static_cast<uint32_t>(std::max(device.attributes().max_qp_wr, 0)), 1 + kDrainMarkers);
  limits.send_queue_depth = std::min(limits.send_queue_depth, max_qp_wr - kDrainMarkers);
  const bool has_srq = device.capabilities().srq;
  VERBENA_RETURN_IF_ERROR(has_srq ? FitSharedReceives(device, limits)
                                  : FitOwnReceives(device, limits));
  if (!has_srq) {
    const bool fewer = limits.max_links != wanted.max_links;
    const LogLevel level = fewer ? LogLevel::kWarning : LogLevel::kInfo;
    if (!IsLogged(LogComponent::kLink, level)) return limits;
    WriteLog(LogComponent::kLink, level,
             fmt::format(
                 "{} has no shared receive queues: {} links (wanted {}), with {} receives and {} "
                 "credits each; srq_depth {} and receives_per_link {} say how many",
                 device.name(), limits.max_links, wanted.max_links, limits.receives_per_link,
                 limits.initial_credits, wanted.srq_depth, wanted.receives_per_link),
             {{"device", device.name()}});
    return limits;
  }
  if (limits.max_links != wanted.max_links || limits.srq_depth != wanted.srq_depth ||
      limits.send_queue_depth != wanted.send_queue_depth) {
    VERBENA_LOG_LINE(
        kLink, kWarning,
        fmt::format("{} limits links to {} (wanted {}), SRQ depth to {} (wanted {}), send queue "
                    "depth to {} (wanted {})",
                    device.name(), limits.max_links, wanted.max_links, limits.srq_depth,
                    wanted.srq_depth, limits.send_queue_depth, wanted.send_queue_depth),
        {{"device", device.name()}});
  }
  return limits;
}

}  // namespace internal
}  // namespace verbena
