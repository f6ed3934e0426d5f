// The options of a SoftDevice: SoftDeviceOptions, TcpWireOptions, and SoftProfile.
//
// By default a soft device has all that it can do. A profile withholds features and shrinks limits,
// so that the device can stand for a poorer one. It then refuses what is withheld as such hardware
// would: code that uses it without a look at DeviceCapabilities and ibv_device_attr fails. Plain
// values; any thread.
//
// A profile is written as lines of `key = value`. The keys are the names of the members, `#` begins
// a comment, and a key that is not there keeps its default:
//
//   # A device before the third generation.
//   srq = false
//   max_inline_bytes = 101
//
// VERBENA_SOFT_PROFILE=FILE has every device of the process take the profile in that file, unless
// its SoftDeviceOptions have one.

#ifndef VERBENA_TRANSPORT_SOFT_OPTIONS_H_
#define VERBENA_TRANSPORT_SOFT_OPTIONS_H_

#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

// The features and limits of a SoftDevice.
struct SoftProfile {
  // Features; most are as in DeviceCapabilities. Without `srq` there is neither of its events, and
  // without `memory_windows` no window is checked. Without `reliable_connections` there is no queue
  // pair at all: no link can use such a device.
  bool reliable_connections = true;
  bool srq = true;
  bool srq_limit_event = true;
  bool last_wqe_event = true;
  bool send_with_immediate = true;
  bool write_with_immediate = true;
  bool atomics = true;
  bool memory_windows = true;
  bool flushes_in_error = true;  // without it, sends that are posted in ERR never complete
  // Limits: the defaults are the most; a profile that goes below the fewest is refused.
  uint32_t max_inline_bytes = 8192;
  uint32_t max_sge = 16;  // of sends, receives and shared receives
  uint32_t max_qp = 16384;
  uint32_t max_qp_wr = 65536;
  uint32_t max_cqe = 1u << 22;
  uint32_t max_srq_wr = 65536;
  uint32_t max_qp_rd_atom = 16;       // READs and atomics that a queue pair serves at once
  uint32_t max_qp_init_rd_atom = 16;  // and that it starts at once
  uint32_t mtu = 4096;                // of the port: 256, 512, 1024, 2048 or 4096

  // Reads `text`. INVALID_ARGUMENT names `file`, the line, the value, and what is allowed.
  static absl::StatusOr<SoftProfile> Parse(std::string_view text, std::string_view file);
  // Reads a file. NOT_FOUND or another error of the system, or as Parse().
  static absl::StatusOr<SoftProfile> Load(const std::string& path);
  // The profile that VERBENA_SOFT_PROFILE names; all that a device can do if it is not set, or
  // empty.
  static absl::StatusOr<SoftProfile> FromEnvironment();

  // INVALID_ARGUMENT names the first limit that is out of range.
  absl::Status Check() const;
};

// How a device is reached by other hosts.
struct TcpWireOptions {
  // Numeric IPv4 or IPv6: where it listens, and how it is reached. Empty, 0.0.0.0 or ::: it listens
  // on every address, and announces that of the first interface that is up and not loopback;
  // loopback if there is none. Link-local addresses do not work, since they mean nothing to other
  // hosts.
  std::string address = "";
  // 0: any free port.
  uint16_t port = 0;
  // A peer's host that was silent for this long is dead: its queue pairs fail. 1 s to 1 h.
  std::chrono::seconds silence_limit = std::chrono::seconds(10);
  // Each ring of a lane over TCP has at least this: a power of two from 128 KiB to 16 MiB. A
  // payload is on its way only as far as its ring has room, though it does not pass through it.
  uint32_t least_ring_bytes = 512 * 1024;
  // Memory for the rings of all connections to peers. A connection between two CQs counts with both
  // sides' rings: 2 MiB with the default ones, up to 64 MiB if both sides have the largest. 0: a
  // quarter of the machine's memory, or 4 GiB if that is more. Otherwise the least is two
  // connections with this device's rings on both sides: just over 4 MiB by default, since each lane
  // has a header. It is address space; what is resident is at most what was written. One source (an
  // IPv4 address, or an IPv6 /64) may hold as much as is left for all others, so at most a half. A
  // connection beyond that is refused: its queue pairs fail. (start)
  size_t lane_bytes = 0;
  // Whether a peer may have another GID than the address that it connects from: behind a NAT, or if
  // its host has several addresses. It may then take the name of a third host, until that one comes
  // itself. Absent: as VERBENA_SOFT_ANY_SOURCE says (1: yes; 0 or unset: no).
  std::optional<bool> any_source = std::nullopt;
};

struct SoftDeviceOptions {
  std::string name = "soft0";
  // False: no thread, and Step drives the device.
  bool engine_thread = true;
  // Whether processes beside this one can connect. Needs the engine thread.
  bool shared_memory = true;
  // True: this device executes its one-sided operations itself, as copies, if it can reach the
  // target's memory. False: the target executes them all. Semantics are the same.
  bool direct_copies = true;
  // The clock of the RNR timers. Null: the machine's steady clock. Outlives the device.
  Clock* clock = nullptr;
  // Memory per pair of CQs that exchange messages, and per direction; powers of two. A message
  // waits in the send queue while its ring is full.
  uint32_t request_ring_bytes = 256 * 1024;
  uint32_t answer_ring_bytes = 128 * 1024;
  // Queue pairs at once, at most 16384. The fewer, the sooner a number is given out again.
  uint32_t max_queue_pairs = 16384;
  // The features that the device has or refuses. None: as VERBENA_SOFT_PROFILE says, otherwise all.
  std::optional<SoftProfile> profile = std::nullopt;
  // A TCP wire beside shared memory, or, with `shared_memory` false, instead of it: then the device
  // reaches without TCP only itself. Its rings have at least TcpWireOptions::least_ring_bytes, and
  // at most 16 MiB.
  std::optional<TcpWireOptions> tcp = std::nullopt;
  // The GID of a device without TCP, for a caller that has a plan for GIDs. Absent: one that no
  // other device has. Another process's device of the same GID makes Create fail.
  std::optional<ibv_gid> gid = std::nullopt;
  // The smallest one-sided operation that is copied by the kernel, on memory that the target's
  // device did not allocate. Smaller ones are left to the target, which is faster if it polls, and
  // slow if it waits for the bytes themselves.
  uint64_t least_kernel_copy_bytes = 8192;
  // How long a CQ may go unpolled before the engine makes progress for it. The engine wakes as
  // often while a CQ is polled.
  Duration unpolled_after = std::chrono::milliseconds(5);
};

}  // namespace verbena::internal

namespace verbena::internal::soft {

struct LaneGeometry;

// The most that any soft device can do.
inline constexpr uint32_t kMaxQueuePairs = 1 << 14;
inline constexpr uint32_t kMaxSge = 16;
inline constexpr uint32_t kMaxInlineBytes = 8192;
inline constexpr uint32_t kMaxMessageBytes = 1u << 30;

// The geometry of the lanes that a device makes over shared memory, and over TCP. Precondition of
// the second: the options have a TCP wire.
LaneGeometry LaneGeometryOf(const SoftDeviceOptions& options);
LaneGeometry TcpLaneGeometryOf(const SoftDeviceOptions& options);

// Takes from a device's attributes and capabilities what `profile` withholds.
void Withhold(const SoftProfile& profile, ibv_device_attr& attributes,
              DeviceCapabilities& capabilities);

// The same for its port.
void Withhold(const SoftProfile& profile, ibv_port_attr& attributes);

// The work requests that may be posted to the send queues of a device: a bit for each
// ibv_wr_opcode.
uint32_t PostableOpcodes(const DeviceCapabilities& capabilities);

// 0, or EINVAL if modify_qp(attributes, mask) asks for more READs or a larger MTU than `profile`
// has.
int CheckWithinProfile(const SoftProfile& profile, const ibv_qp_attr& attributes, int mask);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_OPTIONS_H_
