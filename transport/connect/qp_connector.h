// QpConnector: connects queue pairs through a connection manager (rdma_cm.h), if exchanging their
// numbers does not suffice (iWARP), or is not wanted.
//
// The handshake comes first, over a MessageStream as always: in it the server says where its
// connection manager listens, and gives out a token, which is good for one request. Then both sides
// do the same:
//
//   server                                      client
//     connection = Expect(qp, service)
//     answers the offer, with `service`  ----->   connection = Connect(qp, service)
//     co_await connection->AwaitPeer()            co_await connection->AwaitPeer()
//     moves its queue pair to RTS                 moves its queue pair to RTS
//     connection->Confirm()                       connection->Confirm()
//     co_await connection->AwaitEstablished()     co_await connection->AwaitEstablished()
//
// A connection is shared by its link and by whoever awaits it; the last to let go disconnects it.
// The last must let go after the queue pair has drained and was destroyed, and before the connector
// is destroyed. Awaits have no limit of their own: put WithDeadline around. Everything belongs to
// one executor's thread, unless its comment names another.

#ifndef VERBENA_TRANSPORT_CONNECT_QP_CONNECTOR_H_
#define VERBENA_TRANSPORT_CONNECT_QP_CONNECTOR_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class QpConnection {
 public:
  virtual ~QpConnection() = default;

  // Waits until the peer's queue pair is known.
  virtual Task<absl::Status> AwaitPeer() = 0;
  // Call this and client_sends_first() after AwaitPeer(). Fills in what `attributes.qp_state`
  // (INIT, RTR or RTS) needs, with the mask. The mask is 0 if the connection manager moves the
  // queue pair by itself (iWARP).
  virtual absl::Status FillIn(ibv_qp_attr& attributes, int& mask) = 0;
  // True if the server may not send before it has heard from its client (iWARP).
  virtual bool client_sends_first() const = 0;
  // Tells the peer that this queue pair is ready, so that the peer may begin.
  virtual absl::Status Confirm() = 0;
  virtual Task<absl::Status> AwaitEstablished() = 0;
};

// The properties of a queue pair that a connector needs.
struct ConnectableQp {
  uint32_t qp_number = 0;
  uint32_t peer_qp_number = 0;
  uint8_t reads_served = 0;   // READs and atomics at once, here
  uint8_t reads_started = 0;  // by this side
  // Called at most once, when an established connection ends: the peer disconnected, or the device
  // is being removed. Called on a thread of the connector, and never after the last owner let go of
  // the connection.
  std::function<void(const std::string& reason)> on_end = {};
};

class QpConnector {
 public:
  virtual ~QpConnector() = default;

  // Server. Fills in `service`: the address that the client connects to, and a new token.
  // RESOURCE_EXHAUSTED if too many connections wait, UNAVAILABLE if the connector cannot listen.
  virtual absl::StatusOr<std::shared_ptr<QpConnection>> Expect(ConnectableQp qp,
                                                               RdmaCmService& service) = 0;
  // Client: connects to a server's `service`.
  virtual absl::StatusOr<std::shared_ptr<QpConnection>> Connect(ConnectableQp qp,
                                                                const RdmaCmService& service) = 0;
  // The port's address may be `gid` now: later connections use the addresses that the port has
  // then. From any thread, one call at a time.
  virtual absl::Status MoveTo(const ibv_gid& gid) = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_QP_CONNECTOR_H_
