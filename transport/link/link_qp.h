// LinkQp: the queue pair of a link, the connections that live as long as it does, and what the
// device tells of its end.
//
// Posted requests must end before the queue pair is destroyed, and the queue pair must be destroyed
// before its connection manager's connection. Part of a Link, which orders the steps of its
// teardown, on its executor's thread. Control threads run the verbs.

#ifndef VERBENA_TRANSPORT_LINK_LINK_QP_H_
#define VERBENA_TRANSPORT_LINK_LINK_QP_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/device/handles.h"
#include "verbena/transport/link/watched_stream.h"

namespace verbena::internal {

class LinkQp {
 public:
  explicit LinkQp(QpHandle qp) : qp_(std::move(qp)), qpn_(qp_->qp_num) {}

  // nullptr once Destroy() has begun.
  ibv_qp* get() const { return qp_.get(); }
  // Also valid when the queue pair is gone.
  uint32_t qpn() const { return qpn_; }
  bool is_iwarp() const { return qp_->context->device->transport_type == IBV_TRANSPORT_IWARP; }

  // null without a connection manager.
  const std::shared_ptr<QpConnection>& connection() const { return connection_; }
  void set_connection(std::shared_ptr<QpConnection> connection) {
    connection_ = std::move(connection);
  }
  WatchedStream& stream() { return stream_; }

  // --- teardown

  // Moves the queue pair to ERR, and waits until nobody reads the bootstrap connection.
  Task<void> MoveToError(ControlPool& control, Device& device);
  // The last posted WR has completed.
  void OnDrained() { drained_.Set(); }
  Task<absl::Status> AwaitDrained(TimePoint limit);
  // The device says that no receive of the shared queue is with this queue pair any more.
  void OnLastWqe() { last_wqe_.Set(); }
  bool told_of_last() const { return last_wqe_.is_set(); }
  Task<absl::Status> AwaitLastWqe(TimePoint limit);
  // Destroys `windows` and then the queue pair: the other way round takes some devices a minute
  // (rxe 6.1).
  Task<void> Destroy(ControlPool& control, std::vector<MwHandle> windows);

 private:
  std::shared_ptr<QpConnection> connection_;  // outlives qp_
  QpHandle qp_;
  const uint32_t qpn_;
  WatchedStream stream_;
  Event drained_;
  Event last_wqe_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_QP_H_
