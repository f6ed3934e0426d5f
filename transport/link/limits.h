// The bounds of a link endpoint: every number that sizes a queue, in one place, and how they follow
// from each other.
//
//   receives  = max_links × (initial_credits + kReserveCredits) + what busy links borrow
//               + kRepostBatch ≤ srq_depth, clamped to the device less the spare ones
//   CQ        = srq_depth + max_links × (send_queue_depth + 1): in ERR every posted WR completes,
//               also unsignalled ones, and the marker that teardown posts behind them
//
// Both queues have room for spare receives more (receives.h), if the device allows it: half of
// srq_depth, up to 256. Their buffers are pinned, too.
//
// On a device without shared receive queues each link has its own, of receives_per_link. Its peer
// has credits for all of it but the reserve and a quarter, which may be waiting to be reposted:
//
//   receives  = max_links × receives_per_link ≤ srq_depth
//
// Start values come from measurement on the shared-memory wire. On a device that has less,
// DeriveLimits() reduces them and logs it.

#ifndef VERBENA_TRANSPORT_LINK_LIMITS_H_
#define VERBENA_TRANSPORT_LINK_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/memory/memory_budgets.h"

namespace verbena {

// How payloads share a link with small calls. A SEND waits at most for the bytes that were posted
// ahead of it; the rest of a payload is posted later. A part of LinkLimits.
struct BulkLimits {
  // The most that one chain of WRs moves: 4096 to 2^30. 0 takes the default from measurements. If
  // the processor copies payloads: 256 KiB (128 KiB took a tenth of the bandwidth), which is then
  // also the most that all links of an endpoint move before the executor polls again. Otherwise: 64
  // KiB. The default is at most bytes_ahead. (start)
  uint32_t slice_bytes = 0;
  // Bytes of transfers that a link has posted and not completed: at least 4096, and at least
  // slice_bytes. Above bandwidth x delay of a link of 200 Gb/s (125 KB at 5 us), so that a device
  // never waits for the next slice. (start)
  uint32_t bytes_ahead = 256u << 10;
};

// How memory that is leased to a peer is protected from it.
enum class LeaseLevel : uint8_t {
  kAuto,    // kStrict if the device has memory windows that can be relied on, otherwise kRegion
  kStrict,  // each lease is a memory window of its own
  kRegion,  // whole regions are open to the peer: for devices without windows, or one trust domain
};

// The bounds of leases, and how memory that is leased is protected. A part of LinkLimits.
struct LeaseLimits {
  LeaseLevel level = LeaseLevel::kAuto;
  // Leases of one link at once, under kStrict; more wait. 16 to 4096.
  uint32_t windows_per_link = 64;
  // How long a peer may take to end a call that was given up, before its link is closed. 0: until
  // the next liveness check (one each half ping_interval).
  Duration grace = std::chrono::seconds(5);
  // Memory that waits for one peer to end such calls. While this much waits, no more is leased to
  // the peer. 0: nothing is ever leased.
  size_t quarantine_bytes = size_t{64} << 20;
  // Bytes of landings that one executor of a server grants to one client, over all its links, ahead
  // of requests. All clients together get at most half of memory.receive_bytes. 0 on either side:
  // no grants; the server READs payloads. The default is twice what a deep queue of payloads of 1
  // MiB has in flight. (start)
  size_t granted_bytes_per_client = size_t{32} << 20;
  // The largest payload for which such landings are granted; the server READs larger ones. 0 takes
  // the default from measurements: 16 KiB if memory is shared (1 MiB took 64 us written, 39 read),
  // and no bound otherwise. (start)
  size_t largest_grant_bytes = 0;
};

// Whether payloads carry a CRC32C from end to end; used when both sides want it.
enum class PayloadChecksum : uint8_t {
  kAuto,  // on, except within one host: there a READ of 1 MiB takes 147 us instead of 31
  kOn,
  kOff,
};

// The bounds of the links of one endpoint.
struct VERBENA_EXPORT LinkLimits {
  // For processes that may pin little: one executor on one device pins 3.2 MB at its start, and
  // with all of its links and payloads at most 7.5 MB, so that both fit RLIMIT_MEMLOCK's usual
  // 8 MiB. It takes 32 links, with credits for fewer SENDs under way, and payloads and messages of
  // up to 1 MiB, of each of which about one is on its way at once. Frames are as large as by
  // default, so small calls keep their pace.
  //
  // A runtime takes these bounds by itself where the default ones do not fit (Runtime::reduced()).
  static LinkLimits Small();

  // Links of one endpoint (one executor on one device): 1 to 65,536. One more is refused with
  // RESOURCE_EXHAUSTED.
  uint32_t max_links = 1024;
  // Receives of the shared receive queue, each eager_bytes + 64 bytes of pinned memory: 38 MB by
  // default, and up to 1 MB more for the spare ones. As many are posted as links have credits.
  uint32_t srq_depth = 8192;
  // The largest SEND, and the size of one receive buffer, in bytes: 1024 to 2^20, a multiple of 64.
  // The default has room for a payload of 4 KiB and a message of 424 bytes.
  uint32_t eager_bytes = 4608;
  // SENDs that a link may have under way before it has proven that it uses more: 1 to 32,768.
  uint32_t initial_credits = 4;
  // The most credits of one link, initial ones included: initial_credits to 32,768.
  uint32_t max_credits = 512;
  // WRs posted and not completed, per link: 64 to 4095.
  uint32_t send_queue_depth = 64;
  // Send buffers of an endpoint, shared by its links: 16 to 2^20, each eager_bytes + 64
  // bytes of pinned memory. If there are several source addresses, the links to one
  // address hold at most as many as stay free. As buffers become scarce, each link may hold fewer
  // (send_queue.h). With one source and at least 4 × max_links buffers, each link always finds a
  // first one.
  uint32_t send_buffers = 1024;
  // How long a link waits for its QP to drain before it destroys it. 0: it does not wait.
  Duration teardown_timeout = std::chrono::seconds(1);
  // A link that expects frames and has heard nothing for this long sends PINGs. If it hears nothing
  // for three more intervals, it closes: after 8 to 9 s of silence by default, or 6 to 7 s after a
  // call began on a quiet link. It also closes if its peer leaves a SEND unacknowledged for four
  // intervals. Must be positive.
  Duration ping_interval = std::chrono::seconds(2);
  // A link that carries nothing for this long closes, on either side, unless a call runs on it or
  // memory is leased over it; the next call connects again. Control frames (PING, PONG, RECALL) do
  // not count. 0: never. Must not be negative. (start)
  Duration idle_timeout = std::chrono::minutes(10);
  // A link that waits for nothing, and has heard nothing for this long, sends a PING, and closes as
  // above if its peer does not answer. So a peer that vanished without a word is seen before the
  // next call, and devices between the two keep the path. Either side may do so; it does not keep
  // an idle link from closing. 0, the default: off. Otherwise at least ping_interval.
  Duration keep_alive_interval = std::chrono::seconds(0);
  // The longest time until an address of a server answers, and as long again for the handshake. A
  // client that tries several devices allows each of them both. Must be positive.
  Duration connect_timeout = std::chrono::seconds(10);
  // The longest pause between two attempts to connect with a server that cannot be reached, give or
  // take a fifth: 10 ms to 1 min. Pauses grow from 10 ms, each twice the one before. A server that
  // comes back is found after about as long as it was away, at most after this.
  Duration longest_reconnect_pause = std::chrono::seconds(2);
  BulkLimits bulk = {};
  LeaseLimits leases = {};
  // Payload memory of one executor on one device.
  MemoryBudgets memory = {};
  // The largest payload of one call in one direction, and of one message of a stream: 1 to 64 MiB.
  // A payload and a message of a call that does not fit a frame have 64 MiB together.
  size_t max_payload_bytes = size_t{64} << 20;
  // The largest message, apart from its payload: eager_bytes to 64 MiB. A larger one fails its call
  // or its Write at this side, and from a peer its call or its stream, with RESOURCE_EXHAUSTED; the
  // link stays. The executor parses each message in one piece, during which nothing else runs, and
  // a message of small parts takes up to twenty times its bytes of heap memory.
  size_t max_message_bytes = size_t{4} << 20;
  PayloadChecksum payload_checksum = PayloadChecksum::kAuto;
  // The largest payload that this side sends in a frame beside its message, if both fit there: it
  // is copied, but nothing is leased, granted or asked for. 0: 4 KiB,
  // on each kind of device today. At most eager_bytes. 1 in effect turns it off.
  uint32_t largest_payload_in_frame = 0;
  // Receives of one link on a device without shared receive queues (irdma before its third
  // generation, for example): 8 to 32,768. There each link has its own, of the srq_depth that are
  // pinned: so srq_depth / receives_per_link links, 256 by default. Its peer has credits for three
  // quarters of them less 2, 22 by default, and borrows none; fewer if max_credits says so.
  // Without effect on other devices. (start)
  uint32_t receives_per_link = 32;
};

}  // namespace verbena

namespace verbena::internal {

class Device;

// READs and atomics outstanding on a link, in each direction; clamped to what both devices can do.
inline constexpr uint8_t kMaxReads = 16;

// Receives per link that only SENDs without frames (credit returns) may use, so that two links
// without ordinary credits can still give each other some.
inline constexpr uint32_t kReserveCredits = 2;

// Receives that may be missing before they are reposted, all with one doorbell. As many are posted
// beyond what peers hold credits for.
inline constexpr uint32_t kRepostBatch = 16;

// The same for a link's own receive queue of that depth.
constexpr uint32_t RepostBatchOf(uint32_t receives_per_link) { return receives_per_link / 4; }
// The credits that its peer has: never more than are posted, less the reserve.
constexpr uint32_t WindowOf(uint32_t receives_per_link) {
  return receives_per_link - RepostBatchOf(receives_per_link) - kReserveCredits;
}
// The fewest receives of such a queue.
inline constexpr uint32_t kMinReceivesPerLink = 8;
// A WrId holds 24 bits of the number of a receive.
inline constexpr uint32_t kMaxReceives = (1u << 24) - 1;

// The most receives beyond srq_depth, which take the place of those that a device dropped
// (receives.h): 1 MB. (start)
inline constexpr uint32_t kSpareReceives = 256;
// The same for `limits`, on a device that allows them.
constexpr uint32_t SpareReceivesOf(const LinkLimits& limits) {
  return limits.srq_depth / 2 < kSpareReceives ? limits.srq_depth / 2 : kSpareReceives;
}

// A peer may never be issued more than this at once; a larger claim from it is a violation.
inline constexpr uint32_t kMaxWindow = 1u << 15;

// Liveness checks, two each ping_interval, for which a peer may be silent although something is
// expected of it. Each of these checks sends it a PING; the next one closes the link.
inline constexpr uint32_t kMaxSilentChecks = 6;

// How long a new link may take for the round trips by which it proves itself, if another device may
// reach the peer, too. A device sends a lost packet again after 67 ms by default
// (RdmaOptions::timeout), and TCP a lost Ready after some 200 ms. (start)
inline constexpr Duration kProofTime = std::chrono::seconds(1);

// Liveness checks, two each ping_interval, for which a peer may leave a recall unanswered.
inline constexpr uint32_t kMaxUnansweredRecalls = 4;
// The same for a recall that has not left because the peer issues no credit: an honest peer may be
// slow.
inline constexpr uint32_t kMaxUnsentRecalls = 8;

// Liveness checks, two each ping_interval, for which a peer may leave a SEND unacknowledged: no
// less time than it has to answer a PING. A device that acknowledges nothing gives up sooner
// (RdmaOptions::retry_cnt, kRnrRetry), but counts each SEND by itself. (start)
inline constexpr uint32_t kMaxUnacknowledgedChecks = 8;

// When a link's peer lacks credits and the pool can give none, the endpoint looks at
// kRecallCandidates quiet links at most, and recalls the credits of kRecallsAtOnce at most. If none
// is quiet, it recalls what one busy link has beyond its fair share (CreditIssuer).
inline constexpr int kRecallsAtOnce = 4;
inline constexpr int kRecallCandidates = 16;

// Teardown posts one WR behind all others. Its completion proves that all have ended: WRs that
// succeeded unsignalled never say so themselves.
inline constexpr uint32_t kDrainMarkers = 1;

// A WR is signalled at least this often: SQ slots are freed only by a signalled completion.
inline constexpr uint32_t kSignalInterval = 16;

// Frames for one peer that are posted while the turn goes on, so that the peer works meanwhile:
// half of the calls in flight, within these. (start)
inline constexpr uint32_t kMinEarlyFrames = 4;
inline constexpr uint32_t kMaxEarlyFrames = 32;

// The longest SEND that travels inline over an RDMA device, even if the device could take more. A
// queue pair has room for these bytes in each request of its send queue, which is pinned memory,
// and a device fetches a long request from there. On mlx5 a SEND of up to 236 bytes is a request of
// 256, the most that it pushes to the device (BlueFlame); beside what windows need, a request then
// takes 448 bytes, and 65 of them a queue of 32 KiB. At 253 bytes it is one of 64 KiB, for each
// link. Computed from the provider's source; no NIC has been measured. (start)
inline constexpr uint32_t kMaxInlineBytesOnRdma = 236;

// A WrId holds 12 bits of a send queue position, and the marker of a teardown takes one more place.
inline constexpr uint32_t kMaxSendQueueDepth = 4096 - kDrainMarkers;

// Each receive buffer and each send buffer is followed by this many unused bytes: at 4096 bytes
// apart, the first lines of all buffers would share one set of the L1 cache (8 ns against 1 ns a
// message).
inline constexpr uint32_t kReceiveStridePadding = 64;

// The defaults of LinkLimits::largest_payload_in_frame. Over shared memory, 4 KiB in the frame take
// half of the time that leased ones take (docs/performance.md). On an RDMA NIC: as NVMe over
// Fabrics targets commonly take with a command; no NIC has been measured. (start) On a kernel's
// device (Soft-RoCE, Soft-iWARP) each WR more costs a system call; not measured either. (start)
inline constexpr uint32_t kPayloadInFrameSoft = 4096;
inline constexpr uint32_t kPayloadInFrameHardware = 4096;
inline constexpr uint32_t kPayloadInFrameEmulated = 4096;

// Credits make receiver-not-ready impossible between correct peers. A SEND to a peer that issues
// credits without receives is tried 6 times again, and then the link ends. With 7 it would be tried
// for ever, and hold a send buffer that others need. The receiver sets the time between two tries:
// 10 ms here (code 20 of the InfiniBand specification), 655 ms at most.
inline constexpr uint8_t kRnrRetry = 6;
inline constexpr uint8_t kMinRnrTimer = 20;
// Routers that a packet may pass: as many as IP packets by default.
inline constexpr uint8_t kHopLimit = 64;

// Completions that a CQ must be able to hold for `limits`.
constexpr uint32_t CompletionQueueEntries(const LinkLimits& limits) {
  return limits.srq_depth + limits.max_links * (limits.send_queue_depth + kDrainMarkers);
}

// Bytes that an endpoint pins, at most.
struct PinnedMemory {
  uint64_t at_start = 0;  // receives, send buffers, and the device's own queues for them
  uint64_t links = 0;     // the send queues of all links
  uint64_t payloads = 0;  // all budgets
  uint64_t all() const { return at_start + links + payloads; }
};

// What an endpoint with `limits` pins: its buffers to the byte, and the queues that a NIC has in
// the process's memory by mlx5's arithmetic, computed from the provider's source. `emulated`: the
// device is the kernel's, whose queues are not pinned.
VERBENA_EXPORT PinnedMemory PinnedMemoryOf(const LinkLimits& limits, bool emulated);

// Whether every bound that decides how much memory is pinned has its default.
VERBENA_EXPORT bool HasDefaultSizes(const LinkLimits& limits);
// `limits` with these bounds as in LinkLimits::Small(), and all others as they are.
VERBENA_EXPORT LinkLimits WithSmallSizes(const LinkLimits& limits);

// The LinkLimits::largest_payload_in_frame of `device` unless one is given, if a SEND has room.
VERBENA_EXPORT uint32_t DefaultPayloadInFrame(const Device& device);

// `wanted`, clamped to what `device` can do, with a log line if it had to be. INVALID_ARGUMENT
// names a value that contradicts another or is out of range. UNIMPLEMENTED: the device has no
// memory windows for LeaseLevel::kStrict. RESOURCE_EXHAUSTED: its queues are too small for one
// link. On a device without shared receive queues, initial_credits and max_credits are the window
// of a link's own queue, and srq_depth is the receives of all links. `over_tcp`: the device is the
// soft device over TCP, which shares no memory with its peers.
VERBENA_EXPORT absl::StatusOr<LinkLimits> DeriveLimits(const LinkLimits& wanted,
                                                       const Device& device, bool over_tcp = false);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LIMITS_H_
