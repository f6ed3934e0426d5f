// The making and connecting of a link's queue pair: the only place that knows the verbs attributes
// of a link.
//
// Used by Endpoint and LinkHandshake on the device's control threads: each call may block for the
// time of a control verb.

#ifndef VERBENA_TRANSPORT_LINK_QP_H_
#define VERBENA_TRANSPORT_LINK_QP_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/rdma_options.h"

namespace verbena::internal {

// Which port and GID of a device links use.
struct PortAddress {
  uint8_t port = 1;
  uint8_t gid_index = 0;
  ibv_gid gid = {};
  uint16_t lid = 0;
  uint16_t pkey_index = 0;          // RdmaOptions::pkey_index on InfiniBand
  ibv_mtu path_mtu = IBV_MTU_1024;  // the port's active MTU, or less by RdmaOptions
  LinkKind kind = LinkKind::kSoft;
  uint32_t wire_revision = 0;  // DeviceCapabilities::wire_revision
  bool grh_required = false;   // InfiniBand ports that route by GID alone
};

// The packet sequence number that a queue pair begins with: 24 bits from the kernel. Packets of a
// former queue pair with its number do not fit, and nobody can predict it.
uint32_t NewPsn();

// The peer's queue pair, as connecting needs to know it.
struct RemoteQp {
  uint32_t qpn = 0;
  uint32_t psn = 0;
  ibv_gid gid = {};
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  uint8_t max_reads = 1;
};

// `peer` as the handshake admitted it.
RemoteQp RemoteQpOf(const LinkParameters& peer);

// Reads the attributes of the port. UNAVAILABLE when it is not active. INVALID_ARGUMENT: its table
// of P_Keys has no RdmaOptions::pkey_index.
absl::StatusOr<PortAddress> ReadPortAddress(Device& device, const DevicePort& wanted,
                                            const RdmaOptions& options);

// A queue pair in INIT, on `cq` in both directions and on `srq`; with a receive queue of its own if
// `srq` is null.
absl::StatusOr<QpHandle> CreateLinkQp(Device& device, ibv_pd* pd, ibv_cq* cq, ibv_srq* srq,
                                      const LinkLimits& limits, uint32_t max_inline_bytes,
                                      const PortAddress& local);

// Takes it from INIT to RTR: it receives from `remote`, and sends nothing yet.
absl::Status MakeQpReceive(Device& device, ibv_qp* qp, const PortAddress& local,
                           const RemoteQp& remote, const RdmaOptions& options);
// Takes it from RTR to RTS. `local_psn` is what the peer was told, `peer_reads` what it serves.
absl::Status MakeQpSend(Device& device, ibv_qp* qp, uint32_t local_psn, uint8_t peer_reads,
                        const RdmaOptions& options);
// Both.
absl::Status ConnectLinkQp(Device& device, ibv_qp* qp, const PortAddress& local, uint32_t local_psn,
                           const RemoteQp& remote, const RdmaOptions& options);

// The same with the path that the connection manager knows, after its AwaitPeer(). Values that
// links set themselves (limits.h), and options that are not 0, take precedence over the manager's.
// Nothing is left to do on iWARP.
absl::Status ConnectManagedQp(Device& device, ibv_qp* qp, const PortAddress& local,
                              const RemoteQp& remote, QpConnection& connection,
                              const RdmaOptions& options);

// READs and atomics that this side starts at once, when the peer serves `peer_reads`.
uint8_t ReadsStarted(const Device& device, uint8_t peer_reads);

// READs and atomics that `device` serves at once per link.
uint8_t MaxReads(const Device& device);

// Whether packets need a global route header. Always on RoCE. On InfiniBand only to another subnet,
// or if the port demands it: within a subnet the LID suffices.
bool NeedsGlobalRoute(const PortAddress& local, const RemoteQp& remote);

// One line for the log if the two sides' MTUs differ. "" if they are equal, or do not matter (iWARP
// and the soft device's TCP wire: TCP cuts its own segments).
std::string DescribePathMtu(const PortAddress& local, uint32_t peer_mtu_bytes);

absl::Status MoveQpToError(Device& device, ibv_qp* qp);

// Call once the queue pair is in ERR. Posts a SEND of no bytes, whose flush proves that all WRs
// before it have ended. On a control thread: some providers make a system call, or a command of the
// firmware, of a post in ERR (hns, irdma).
absl::Status PostDrainMarker(ibv_qp* qp, uint64_t wr_id);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_QP_H_
