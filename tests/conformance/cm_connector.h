// CmConnector: connects a LocalHost's QPs through rdma_cm, if ModifyQp alone cannot (iWARP).
//
// A CmConnector keeps one connection for each QP, by the QP's id, from Expect() or Request() until
// Forget(). It starts rdma_cm at the first of these calls. Owned by the LocalHost. Safe from any
// thread: calls run one at a time, each for at most kPatienceMs.

#ifndef VERBENA_TESTS_CONFORMANCE_CM_CONNECTOR_H_
#define VERBENA_TESTS_CONFORMANCE_CM_CONNECTOR_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/conformance/objects.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/connect/rdma_cm.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal::conformance {

class CmConnector {
 public:
  // `device` is the name of an iWARP device, `gid` its port's GID.
  CmConnector(std::string device, const ibv_gid& gid) : device_(std::move(device)), gid_(gid) {}

  // These do what Host says of CmExpect(), CmRequest(), CmJoin() and so on.
  absl::StatusOr<RdmaCmService> Expect(Qp qp, CmOptions options);
  absl::Status Request(Qp qp, CmOptions options, const RdmaCmService& service);
  absl::Status Join(Qp qp);
  absl::Status AwaitEstablished(Qp qp);
  absl::StatusOr<bool> HasEnded(Qp qp);

  // Drops the connection of a QP that was destroyed. Does nothing if the QP never had one.
  void Forget(Qp qp);
  void ForgetAll();

 private:
  struct Connection {
    std::shared_ptr<QpConnection> connection;
    // Set on rdma_cm's thread.
    std::shared_ptr<std::atomic<bool>> ended = std::make_shared<std::atomic<bool>>(false);
  };

  // Call these with mutex_ held.
  absl::StatusOr<RdmaCm*> Cm();
  absl::StatusOr<QpConnection*> Find(Qp qp);
  absl::Status Run(Task<absl::Status> task);

  const std::string device_;
  const ibv_gid gid_;

  std::mutex mutex_;
  WaitingScheduler scheduler_;
  std::unique_ptr<RdmaCm> cm_;
  std::map<uint32_t, Connection> connections_;  // by the QP's id; destroyed before cm_
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_CM_CONNECTOR_H_
