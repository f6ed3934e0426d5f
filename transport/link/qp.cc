#include "verbena/transport/link/qp.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

unsigned AccessOf(const Device& device) {
  return IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
         (device.capabilities().atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

LinkKind KindOf(Device& device, const ibv_port_attr& port, bool roce_v1) {
  // Only its TCP wire gives the soft device a LID: the TCP port.
  if (device.kind() == DeviceKind::kSoft) return port.lid == 0 ? LinkKind::kSoft : LinkKind::kTcp;
  if (device.context()->device->transport_type == IBV_TRANSPORT_IWARP) return LinkKind::kIwarp;
  if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) return LinkKind::kInfiniBand;
  return roce_v1 ? LinkKind::kRoceV1 : LinkKind::kRoce;
}

// The largest of verbs' five sizes that is at most `bytes`, or the smallest.
ibv_mtu MtuOf(uint32_t bytes) {
  int mtu = IBV_MTU_4096;
  while (mtu > IBV_MTU_256 && (128u << mtu) > bytes) --mtu;
  return static_cast<ibv_mtu>(mtu);
}

// 0 leaves what `path` has: a connection manager may know better.
void SetClass(const RdmaOptions& options, ibv_ah_attr& path) {
  if (options.traffic_class != 0) {
    path.grh.traffic_class = static_cast<uint8_t>(options.traffic_class);
  }
  if (options.sl != 0) path.sl = static_cast<uint8_t>(options.sl);
  if (options.flow_label != 0) path.grh.flow_label = options.flow_label;
}

// The index of the P_Key that links of `port` use. Only InfiniBand has more than one.
absl::StatusOr<uint16_t> PkeyIndexOf(const RdmaOptions& options, LinkKind kind,
                                     const ibv_port_attr& attributes, const std::string& port) {
  if (kind != LinkKind::kInfiniBand || options.pkey_index == 0) return 0;
  if (options.pkey_index < attributes.pkey_tbl_len) {
    return static_cast<uint16_t>(options.pkey_index);
  }
  return absl::InvalidArgumentError(fmt::format(
      "RdmaOptions::pkey_index is {}, but must be in [0, {}]: {} has {} P_Keys", options.pkey_index,
      std::max<int>(attributes.pkey_tbl_len, 1) - 1, port, attributes.pkey_tbl_len));
}

void SetRetries(const RdmaOptions& options, ibv_qp_attr& attributes) {
  attributes.timeout = static_cast<uint8_t>(options.timeout);
  attributes.retry_cnt = static_cast<uint8_t>(options.retry_cnt);
  attributes.rnr_retry = kRnrRetry;
}

}  // namespace

uint32_t NewPsn() {
  uint32_t psn = 0;
  ssize_t got = 0;
  do {
    got = getrandom(&psn, sizeof(psn), 0);
  } while (got < 0 && errno == EINTR);
  VERBENA_CHECK(got == sizeof(psn)) << "getrandom: " << got << ", errno " << errno;
  return psn & 0xffffff;
}

RemoteQp RemoteQpOf(const LinkParameters& peer) {
  RemoteQp remote;
  remote.qpn = peer.qp_number;
  remote.psn = peer.packet_sequence_number;
  std::memcpy(remote.gid.raw, peer.gid.data(), peer.gid.size());
  remote.lid = peer.lid;
  remote.max_reads = peer.max_reads;
  // The handshake admits the five sizes that verbs know, 256 to 4096.
  remote.mtu = MtuOf(peer.mtu_bytes);
  return remote;
}

absl::StatusOr<PortAddress> ReadPortAddress(Device& device, const DevicePort& wanted,
                                            const RdmaOptions& options) {
  const uint8_t port = wanted.port;
  VERBENA_ASSIGN_OR_RETURN(ibv_port_attr attributes, device.QueryPort(port));
  if (attributes.state != IBV_PORT_ACTIVE) {
    return absl::UnavailableError(
        fmt::format("port {} of {} is not active; bring it up: ip link set dev NETDEV up", port,
                    device.name()));
  }
  VERBENA_ASSIGN_OR_RETURN(ibv_gid gid, device.QueryGid(port, wanted.gid_index));
  const bool empty = gid.global.subnet_prefix == 0 && gid.global.interface_id == 0;
  if (empty && device.kind() == DeviceKind::kRdma) {
    return absl::UnavailableError(
        fmt::format("GID {} of port {} of {} is gone: its address was taken away", wanted.gid_index,
                    port, device.name()));
  }
  const LinkKind kind = KindOf(device, attributes, wanted.roce_v1);
  VERBENA_ASSIGN_OR_RETURN(
      uint16_t pkey_index,
      PkeyIndexOf(options, kind, attributes, fmt::format("port {} of {}", port, device.name())));
  const bool capped = options.path_mtu != 0 && device.kind() == DeviceKind::kRdma;
  return PortAddress{.port = port,
                     .gid_index = wanted.gid_index,
                     .gid = gid,
                     .lid = attributes.lid,
                     .pkey_index = pkey_index,
                     .path_mtu = capped ? std::min(attributes.active_mtu, MtuOf(options.path_mtu))
                                        : attributes.active_mtu,
                     .kind = kind,
                     .wire_revision = device.capabilities().wire_revision,
                     .grh_required = (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0};
}

absl::StatusOr<QpHandle> CreateLinkQp(Device& device, ibv_pd* pd, ibv_cq* cq, ibv_srq* srq,
                                      const LinkLimits& limits, uint32_t max_inline_bytes,
                                      const PortAddress& local) {
  ibv_qp_init_attr init = {};
  init.send_cq = cq;
  init.recv_cq = cq;
  init.srq = srq;
  init.cap.max_send_wr = limits.send_queue_depth + kDrainMarkers;
  init.cap.max_send_sge = 1;
  init.cap.max_inline_data = max_inline_bytes;
  if (srq == nullptr) {
    init.cap.max_recv_wr = limits.receives_per_link;
    init.cap.max_recv_sge = 1;
  }
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 0;
  VERBENA_ASSIGN_OR_RETURN(ibv_qp * created, device.CreateQp(pd, init));
  QpHandle qp(device, created);

  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = local.pkey_index;
  attributes.port_num = local.port;
  attributes.qp_access_flags = AccessOf(device);
  int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (local.kind != LinkKind::kIwarp) mask |= IBV_QP_PKEY_INDEX;
  VERBENA_RETURN_IF_ERROR(device.ModifyQp(qp.get(), attributes, mask));
  return qp;
}

absl::Status MakeQpReceive(Device& device, ibv_qp* qp, const PortAddress& local,
                           const RemoteQp& remote, const RdmaOptions& options) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = std::min(local.path_mtu, remote.mtu);
  attributes.dest_qp_num = remote.qpn;
  attributes.rq_psn = remote.psn;
  attributes.max_dest_rd_atomic = MaxReads(device);
  attributes.min_rnr_timer = kMinRnrTimer;
  attributes.ah_attr.port_num = local.port;
  attributes.ah_attr.dlid = remote.lid;
  attributes.ah_attr.is_global = NeedsGlobalRoute(local, remote) ? 1 : 0;
  attributes.ah_attr.grh.dgid = remote.gid;
  attributes.ah_attr.grh.sgid_index = local.gid_index;
  attributes.ah_attr.grh.hop_limit = kHopLimit;
  SetClass(options, attributes.ah_attr);
  VERBENA_RETURN_IF_ERROR(device.ModifyQp(qp, attributes,
                                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                              IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  return device.AwaitPeer(qp);
}

absl::Status MakeQpSend(Device& device, ibv_qp* qp, uint32_t local_psn, uint8_t peer_reads,
                        const RdmaOptions& options) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = local_psn;
  SetRetries(options, attributes);
  attributes.max_rd_atomic = ReadsStarted(device, peer_reads);
  return device.ModifyQp(qp, attributes,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

absl::Status ConnectLinkQp(Device& device, ibv_qp* qp, const PortAddress& local, uint32_t local_psn,
                           const RemoteQp& remote, const RdmaOptions& options) {
  VERBENA_RETURN_IF_ERROR(MakeQpReceive(device, qp, local, remote, options));
  return MakeQpSend(device, qp, local_psn, remote.max_reads, options);
}

absl::Status ConnectManagedQp(Device& device, ibv_qp* qp, const PortAddress& local,
                              const RemoteQp& remote, QpConnection& connection,
                              const RdmaOptions& options) {
  // The kernel may set bits behind the last, which older verbs had.
  constexpr int kKnownBits = (IBV_QP_DEST_QPN << 1) - 1;
  for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = state;
    int mask = 0;
    VERBENA_RETURN_IF_ERROR(connection.FillIn(attributes, mask));
    if (mask == 0) continue;
    attributes.qp_access_flags = AccessOf(device);
    attributes.path_mtu = std::min({attributes.path_mtu, local.path_mtu, remote.mtu});
    SetClass(options, attributes.ah_attr);
    attributes.max_dest_rd_atomic = MaxReads(device);
    attributes.min_rnr_timer = kMinRnrTimer;
    SetRetries(options, attributes);
    attributes.max_rd_atomic = ReadsStarted(device, remote.max_reads);
    VERBENA_RETURN_IF_ERROR(device.ModifyQp(qp, attributes, mask & kKnownBits));
  }
  return absl::OkStatus();
}

uint8_t ReadsStarted(const Device& device, uint8_t peer_reads) {
  return static_cast<uint8_t>(
      std::clamp<int>(device.attributes().max_qp_init_rd_atom, 0, std::min(peer_reads, kMaxReads)));
}

uint8_t MaxReads(const Device& device) {
  return static_cast<uint8_t>(std::clamp<int>(device.attributes().max_qp_rd_atom, 0, kMaxReads));
}

bool NeedsGlobalRoute(const PortAddress& local, const RemoteQp& remote) {
  if (local.kind != LinkKind::kInfiniBand || local.grh_required || remote.lid == 0) return true;
  return local.gid.global.subnet_prefix != remote.gid.global.subnet_prefix;
}

std::string DescribePathMtu(const PortAddress& local, uint32_t peer_mtu_bytes) {
  const uint32_t mine = 128u << local.path_mtu;
  if (mine == peer_mtu_bytes || local.kind == LinkKind::kIwarp || local.kind == LinkKind::kTcp) {
    return "";
  }
  return fmt::format("path MTU {}: it is {} here, {} there", std::min(mine, peer_mtu_bytes), mine,
                     peer_mtu_bytes);
}

absl::Status MoveQpToError(Device& device, ibv_qp* qp) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  return device.ModifyQp(qp, attributes, IBV_QP_STATE);
}

absl::Status PostDrainMarker(ibv_qp* qp, uint64_t wr_id) {
  ibv_send_wr marker = {};
  marker.wr_id = wr_id;
  marker.opcode = IBV_WR_SEND;
  marker.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(qp, &marker, &refused);
  if (error == 0) return absl::OkStatus();
  return ErrnoStatus(error, fmt::format("draining QPN {:#x}", qp->qp_num));
}

}  // namespace verbena::internal
