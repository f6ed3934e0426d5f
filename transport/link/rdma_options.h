// RdmaOptions: how the links of a program's RDMA devices use the fabric.
//
// A value, for RuntimeOptions::rdma. All links of all RDMA devices of the runtime have the same.
// Each side sets what it sends, so give both sides the same values, except pkey_index (the host's
// own table), path_mtu (one side is enough) and comp_vectors. The soft device has no fabric and
// ignores them.
//
//   Runtime::Start({.rdma = {.traffic_class = 106}});  // DSCP 26, ECN-capable

#ifndef VERBENA_TRANSPORT_LINK_RDMA_OPTIONS_H_
#define VERBENA_TRANSPORT_LINK_RDMA_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "verbena/transport/base/export.h"

namespace verbena {

// The names are those of verbs' fields. A value out of its range fails
// Runtime::Start() with INVALID_ARGUMENT. docs/devices.md ("The fabric") says how to choose.
struct RdmaOptions {
  // The byte of each packet by which RoCE v2 networks tell classes: 0 to 255, which is DSCP × 4
  // plus the bits of ECN. A network that is lossless for one class alone drops packets of the
  // others. Packets without a global route header (InfiniBand within a subnet) have none. 0: class
  // 0 by exchange, the kernel's choice (default_roce_tos) by rdma_cm.
  uint32_t traffic_class = 0;
  // The service level of InfiniBand, and the priority of RoCE: 0 to 15 (RoCE: to 7). 0: level 0 by
  // exchange, the subnet manager's or kernel's choice by rdma_cm.
  uint32_t sl = 0;
  // 0 to 1,048,575. 0: the device chooses, and most spread their links over equal paths by it. Any
  // other value sends all links one way.
  uint32_t flow_label = 0;
  // InfiniBand's partition: the index of its P_Key in the port's table, from 0 (`ibv_devinfo -v`,
  // /sys/class/infiniband/DEVICE/ports/PORT/pkeys). Both sides need the same P_Key, and one of the
  // two a full member's (0x8000 and more). Ports of RoCE and iWARP have no partitions. rdma_cm
  // takes the P_Key of the address's interface instead.
  uint32_t pkey_index = 0;
  // The largest packet of a path, in bytes: 256, 512, 1024, 2048 or 4096; 0: as large as both ports
  // take. The smaller of both sides' holds, so that one side may set it. Without effect on iWARP.
  uint32_t path_mtu = 0;
  // How long a packet waits for its acknowledgement before it counts as lost: 4.096 µs × 2^timeout,
  // 67 ms by default; 1 to 31. Devices may wait up to four times that.
  uint32_t timeout = 14;
  // How often a lost packet is sent again before its link ends: 0 to 7. With the defaults a link
  // lives through 0.5 s without an answer (2.1 s on devices that wait four times as long).
  // LinkLimits::ping_interval bounds the silence, too.
  uint32_t retry_cnt = 7;
  // The completion vector of each executor, by the executor's index: the device's interrupt, and by
  // the machine's settings the core, that an executor's completions wake. Executors without an
  // entry take the vectors in turn. An entry that the device does not have is INVALID_ARGUMENT.
  std::vector<int> comp_vectors = {};
};

}  // namespace verbena

namespace verbena::internal {

// INVALID_ARGUMENT names the value that is out of range, and the range.
VERBENA_EXPORT absl::Status CheckRdmaOptions(const RdmaOptions& options);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_RDMA_OPTIONS_H_
