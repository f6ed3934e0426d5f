// The bounds of a link endpoint: every number that sizes a queue, in one place, and how they follow
// from each other.
//
//   receives  = max_links × (initial_credits + kReserveCredits) + what is lent to busy links
//               + kRepostBatch ≤ srq_depth, clamped to the device
//   CQ        = srq_depth + max_links × (send_queue_depth + 1): in ERR every posted WR completes,
//               also unsignalled ones, and the marker that teardown posts behind them
//
// Start values come from measurement on the shared-memory wire; a device with less shrinks them,
// and Derive() says so.

#ifndef VERBENA_TRANSPORT_LINK_LIMITS_H_
#define VERBENA_TRANSPORT_LINK_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/memory/memory_budgets.h"

namespace verbena {

class Device;

// Receives per link that only SENDs without frames (credit returns) may use, so that two links
// without ordinary credits can still give each other some.
inline constexpr uint32_t kReserveCredits = 2;

// Receives that may be missing before they are reposted, all with one doorbell. As many are posted
// beyond what peers hold credits for.
inline constexpr uint32_t kRepostBatch = 16;

// A peer may never be granted more than this at once; a larger claim from it is a violation.
inline constexpr uint32_t kMaxWindow = 1u << 15;

// Teardown posts one WR behind all others, whose completion proves that they have ended: those that
// succeeded unsignalled never say so themselves.
inline constexpr uint32_t kDrainMarkers = 1;

// A WR is signalled at least this often: SQ slots are freed only by a signalled completion.
inline constexpr uint32_t kSignalInterval = 16;

// Receive buffers lie this far beyond their size apart: at 4096 bytes apart their first lines would
// share one set of the L1 cache (8 ns against 1 ns a message).
inline constexpr uint32_t kReceiveStridePadding = 64;

// How a queue pair retries. A packet counts as lost after 4.096 µs × 2^kAckTimeout = 67 ms (devices
// may take up to four times that), and is sent again kRetryCount times before the link ends: half a
// second without any answer, and then the channel reconnects.
inline constexpr uint8_t kAckTimeout = 14;
inline constexpr uint8_t kRetryCount = 7;
// Credits make receiver-not-ready impossible, so these two are a backstop against our own faults:
// for ever (7), each 0.64 ms later (code 12 of the InfiniBand specification; code 0 is 655 ms).
inline constexpr uint8_t kRnrRetry = 7;
inline constexpr uint8_t kMinRnrTimer = 12;
// Routers that a packet may pass: as many as IP packets by default.
inline constexpr uint8_t kHopLimit = 64;
// READs and atomics outstanding on a link, in each direction; clamped to what both devices can do.
inline constexpr uint8_t kMaxReads = 16;

// A transfer's WR moves at most this much. Devices take more (rxe 8 MiB, most 1 GiB); but a WR is
// the unit in which transfers take turns, and in which a link's end cuts them off.
inline constexpr uint32_t kMaxTransferWrBytes = 1u << 20;

// How memory that is lent to a peer is protected from it.
enum class LeaseLevel : uint8_t {
  kAuto,    // kStrict where the device has memory windows that can be relied on, else kRegion
  kStrict,  // each lease is a memory window of its own
  kRegion,  // whole regions are open to the peer: for devices without windows, or one trust domain
};

// Whether payloads carry a CRC32C from end to end; used when both sides want it.
enum class PayloadChecksum : uint8_t {
  kAuto,  // except within one host, where it halves the bandwidth
  kOn,
  kOff,
};

struct LeaseLimits {
  LeaseLevel level = LeaseLevel::kAuto;
  // Leases of one link at once, under kStrict; more wait.
  uint32_t windows_per_link = 64;
  // How long a peer may take to end a call that was given up, before its link is closed.
  Duration grace = std::chrono::seconds(5);
  // Memory that waits for one peer to end such calls; while there is more, none is lent to it.
  size_t quarantine_bytes = size_t{64} << 20;
  // Memory that a server may lend to one client ahead of its requests, so that their payloads are
  // written at once; on either side 0 for none: the server then reads them. Twice the payloads of
  // 1 MiB that a deep queue has in flight. (start)
  size_t granted_bytes_per_link = size_t{32} << 20;
  // The largest payload that such memory is lent for; larger ones the server reads. 0 for what
  // figures favour: 16 KiB where memory is shared (1 MiB took 64 us written, 39 read), and no
  // bound elsewhere. (start)
  size_t largest_grant_bytes = 0;
};

struct LinkLimits {
  // Links of one endpoint (one executor on one device). One more is refused with
  // RESOURCE_EXHAUSTED.
  uint32_t max_links = 128;
  // Receives of the shared receive queue.
  uint32_t srq_depth = 4096;
  // The largest SEND, and the size of one receive buffer, in bytes.
  uint32_t eager_bytes = 4096;
  // What a link may send before it has proven that it uses more.
  uint32_t initial_credits = 8;
  // What one link may be lent at most, initial credits included.
  uint32_t max_credits = 512;
  // WRs posted and not completed, per link. At least 4 × kSignalInterval.
  uint32_t send_queue_depth = 64;
  // Send buffers of an endpoint, shared by its links; eager_bytes each.
  uint32_t send_buffers = 1024;
  // How long a link waits for its QP to drain before it destroys it.
  Duration teardown_timeout = std::chrono::seconds(1);
  // A link with calls outstanding that hears nothing for this long sends a PING; after three
  // such intervals without a word its peer counts as dead.
  Duration ping_interval = std::chrono::seconds(2);
  // Connecting, handshake included.
  Duration connect_timeout = std::chrono::seconds(10);
  LeaseLimits leases = {};
  // Payload memory of one executor on one device.
  MemoryBudgets memory = {};
  // The largest payload, and the largest message, of one call in one direction.
  size_t max_payload_bytes = size_t{64} << 20;
  PayloadChecksum payload_checksum = PayloadChecksum::kAuto;
};

// Completions that a CQ must be able to hold for `limits`.
constexpr uint32_t CompletionQueueEntries(const LinkLimits& limits) {
  return limits.srq_depth + limits.max_links * (limits.send_queue_depth + kDrainMarkers);
}

// `wanted`, clamped to what `device` can do, with a log line when it had to be. INVALID_ARGUMENT
// names a value that contradicts another or is out of range.
absl::StatusOr<LinkLimits> DeriveLimits(const LinkLimits& wanted, const Device& device);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LIMITS_H_
