// RdmaCm: the QpConnector of one port of an RDMA device, over librdmacm.
//
// It connects queue pairs only. The handshake stays on the bootstrap's stream, since a connection
// request carries 56 bytes at most, and since the end of the stream tells that a peer died. Any
// bootstrap will do.
//
// Queue pairs are made by their Device, on a context of its own, and rdma_cm is told their numbers:
// the kernel finds them by these on all kinds of devices. (Only rdma_create_qp demands the context
// of rdma_get_devices(), which opens every device of the host and keeps all of them open.)
//
// Owned by whoever opened the device, and outlives every connection. It listens on a port of its
// own choice from the first Expect() on, so that a mere client opens none. If the port loses that
// address, the next Expect() listens anew. Events are read on a thread of its own. siw's
// rdma_connect waits on that thread for the peer's TCP, so one host that swallows packets delays
// the other connections of a siw device.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<RdmaCm> cm, RdmaCm::Start({.device = "siw0", …}));

#ifndef VERBENA_TRANSPORT_CONNECT_RDMA_CM_H_
#define VERBENA_TRANSPORT_CONNECT_RDMA_CM_H_

#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/connect/rdma_cm_address.h"
#include "verbena/transport/connect/rdma_cm_channel.h"
#include "verbena/transport/connect/rdma_cm_connection.h"

namespace verbena::internal {

// Connections that wait for their client at once; one more is refused.
inline constexpr size_t kMaxExpectedConnections = 1024;

struct RdmaCmOptions {
  std::string device;  // "siw0"
  uint8_t port = 1;
  LinkKind kind = LinkKind::kRoce;
  ibv_gid gid = {};  // the port's; its IP addresses are found by it
};

class RdmaCm final : public QpConnector, private CmEventListener {
 public:
  // UNAVAILABLE if the kernel has no rdma_cm; FAILED_PRECONDITION when no IP address of this
  // host is on the port.
  static absl::StatusOr<std::unique_ptr<RdmaCm>> Start(RdmaCmOptions options);
  ~RdmaCm() override;

  absl::StatusOr<std::shared_ptr<QpConnection>> Expect(ConnectableQp qp,
                                                       RdmaCmService& service) override;
  absl::StatusOr<std::shared_ptr<QpConnection>> Connect(ConnectableQp qp,
                                                        const RdmaCmService& service) override;

  // FAILED_PRECONDITION when no IP address of this host is on the port.
  absl::Status MoveTo(const ibv_gid& gid) override;

  // The port's addresses. Servers give out the first.
  std::vector<IpAddress> addresses() const;

 private:
  RdmaCm(RdmaCmOptions options, std::shared_ptr<CmChannel> channel);

  absl::StatusOr<std::vector<IpAddress>> FindAddresses(const ibv_gid& gid);
  bool IsOnPort(const IpAddress& ip);
  // Listens, unless it does already. Returns the address, without a token.
  absl::StatusOr<RdmaCmService> Listen();
  absl::StatusOr<uint16_t> ListenOnce(const IpAddress& ip);
  void OnCmEvent(const CmEvent& event) override;
  void OnRequest(const CmEvent& request);

  const RdmaCmOptions options_;
  const std::shared_ptr<CmChannel> channel_;
  const std::shared_ptr<CmConnection::Waiting> waiting_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<IpAddress> addresses_;
  rdma_cm_id* listener_ = nullptr;  // at the first of addresses_

  ThrottledLog refusals_{{}};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RDMA_CM_H_
