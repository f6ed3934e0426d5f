// SoftProfile: the features and limits of a SoftDevice, so that it can stand for a poorer device.
//
// By default a soft device has all that it can do. A profile withholds features and shrinks limits.
// The device then refuses what is withheld as such hardware would: code that uses it without a look
// at DeviceCapabilities and ibv_device_attr fails. Plain values; any thread.
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

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

struct SoftProfile {
  // Features, as in DeviceCapabilities. Without `srq` there is neither of its events, and without
  // `memory_windows` no window is checked.
  bool srq = true;
  bool srq_limit_event = true;
  bool last_wqe_event = true;
  bool send_with_immediate = true;
  bool write_with_immediate = true;
  bool atomics = true;
  bool memory_windows = true;
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

}  // namespace verbena::internal

namespace verbena::internal::soft {

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
