// CmConnector: what connects a LocalHost's QPs where ModifyQp cannot (iWARP), through rdma_cm.
//
// One connection for each QP, by its id, from Expect() or Request() on until Forget(). Its rdma_cm
// is started when it is first needed, so that a host of any other device has none. Safe from any
// thread; one call at a time goes on.

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
#include "verbena/transport/connect/link_parameters.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/connect/rdma_cm.h"
#include "verbena/transport/coro/task.h"

namespace verbena::conformance {

class CmConnector {
 public:
  // An iWARP device's; `gid` is its port's.
  CmConnector(std::string device, const ibv_gid& gid) : device_(std::move(device)), gid_(gid) {}

  // As Host says of its calls of the same names.
  absl::StatusOr<RdmaCmService> Expect(Qp qp, CmOptions options);
  absl::Status Request(Qp qp, CmOptions options, const RdmaCmService& service);
  absl::Status Join(Qp qp);
  absl::Status AwaitEstablished(Qp qp);
  absl::StatusOr<bool> HasEnded(Qp qp);

  // After the QP was destroyed; also of one that never was connected.
  void Forget(Qp qp);
  void ForgetAll();

 private:
  struct Connection {
    std::shared_ptr<QpConnection> connection;
    // Set on rdma_cm's thread.
    std::shared_ptr<std::atomic<bool>> ended = std::make_shared<std::atomic<bool>>(false);
  };

  // These with mutex_ held.
  absl::StatusOr<RdmaCm*> Cm();
  absl::StatusOr<QpConnection*> Find(Qp qp);
  absl::Status Run(Task<absl::Status> task);

  const std::string device_;
  const ibv_gid gid_;

  std::mutex mutex_;
  WaitingScheduler scheduler_;
  std::unique_ptr<RdmaCm> cm_;
  std::map<uint32_t, Connection> connections_;  // by the QP's id; they go before cm_
};

}  // namespace verbena::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_CM_CONNECTOR_H_
