#include "tests/conformance/cm_connector.h"

#include <chrono>

#include "fmt/format.h"
#include "tests/conformance/patience.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal::conformance {
namespace {

ConnectableQp Describe(Qp qp, CmOptions options, std::shared_ptr<std::atomic<bool>> ended) {
  return {.qp_number = qp.number,
          .peer_qp_number = options.peer_qpn,
          .reads_served = options.reads_served,
          .reads_started = options.reads_started,
          .on_end = [ended = std::move(ended)](const std::string&) { *ended = true; }};
}

}  // namespace

absl::StatusOr<RdmaCm*> CmConnector::Cm() {
  if (cm_ == nullptr) {
    absl::StatusOr<std::unique_ptr<RdmaCm>> cm =
        RdmaCm::Start({.device = device_, .port = 1, .kind = LinkKind::kIwarp, .gid = gid_});
    if (!cm.ok()) return cm.status();
    cm_ = *std::move(cm);
  }
  return cm_.get();
}

absl::StatusOr<QpConnection*> CmConnector::Find(Qp qp) {
  const auto found = connections_.find(qp.id);
  if (found != connections_.end()) return found->second.connection.get();
  return absl::FailedPreconditionError(fmt::format("QP {} has no connection", qp.number));
}

absl::Status CmConnector::Run(Task<absl::Status> task) {
  const TimePoint limit = Clock::Real().Now() + std::chrono::milliseconds(kPatienceMs);
  return scheduler_.Run(WithDeadline(std::move(task), limit));
}

absl::StatusOr<RdmaCmService> CmConnector::Expect(Qp qp, CmOptions options) {
  std::lock_guard lock(mutex_);
  absl::StatusOr<RdmaCm*> cm = Cm();
  if (!cm.ok()) return cm.status();
  Connection made;
  RdmaCmService service;
  auto connection = (*cm)->Expect(Describe(qp, options, made.ended), service);
  if (!connection.ok()) return connection.status();
  made.connection = *std::move(connection);
  connections_.insert_or_assign(qp.id, std::move(made));
  return service;
}

absl::Status CmConnector::Request(Qp qp, CmOptions options, const RdmaCmService& service) {
  std::lock_guard lock(mutex_);
  absl::StatusOr<RdmaCm*> cm = Cm();
  if (!cm.ok()) return cm.status();
  Connection made;
  auto connection = (*cm)->Connect(Describe(qp, options, made.ended), service);
  if (!connection.ok()) return connection.status();
  made.connection = *std::move(connection);
  connections_.insert_or_assign(qp.id, std::move(made));
  return absl::OkStatus();
}

absl::Status CmConnector::Join(Qp qp) {
  std::lock_guard lock(mutex_);
  absl::StatusOr<QpConnection*> connection = Find(qp);
  if (!connection.ok()) return connection.status();
  const absl::Status known = Run((*connection)->AwaitPeer());
  return known.ok() ? (*connection)->Confirm() : known;
}

absl::Status CmConnector::AwaitEstablished(Qp qp) {
  std::lock_guard lock(mutex_);
  absl::StatusOr<QpConnection*> connection = Find(qp);
  return connection.ok() ? Run((*connection)->AwaitEstablished()) : connection.status();
}

absl::StatusOr<bool> CmConnector::HasEnded(Qp qp) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(qp.id);
  if (found != connections_.end()) return found->second.ended->load();
  return absl::FailedPreconditionError(fmt::format("QP {} has no connection", qp.number));
}

void CmConnector::Forget(Qp qp) {
  std::lock_guard lock(mutex_);
  connections_.erase(qp.id);
}

void CmConnector::ForgetAll() {
  std::lock_guard lock(mutex_);
  connections_.clear();
}

}  // namespace verbena::internal::conformance
