#include "tests/transport/link/fake_connector.h"

#include <infiniband/verbs.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::internal {

void FakeConnector::EndAll(const std::string& reason) {
  for (const auto& weak : all_) {
    if (auto connection = weak.lock()) connection->qp.on_end(reason);
  }
}

absl::StatusOr<std::shared_ptr<QpConnection>> FakeConnector::Expect(ConnectableQp qp,
                                                                    RdmaCmService& service) {
  service = {.address = {0xfd}, .port = 7, .token = ++last_token_};
  auto connection = Make(std::move(qp), rule != Rule::kNone);
  waiting_[last_token_] = connection;
  return std::shared_ptr<QpConnection>(connection);
}

absl::StatusOr<std::shared_ptr<QpConnection>> FakeConnector::Connect(ConnectableQp qp,
                                                                     const RdmaCmService& service) {
  auto client = Make(std::move(qp), rule == Rule::kClientFirst);
  const std::shared_ptr<Connection> server = waiting_[service.token].lock();
  waiting_.erase(service.token);
  if (!refusal.ok() || server == nullptr) {
    client->steps->Finish(refusal.ok() ? absl::UnavailableError("unknown token") : refusal);
  } else {
    client->peer = server;
    server->peer = client;
    server->steps->Push(1);
  }
  return std::shared_ptr<QpConnection>(client);
}

absl::Status FakeConnector::MoveTo(const ibv_gid&) {
  ++moves;
  return move_status;
}

FakeConnector::Connection::Connection(FakeConnector& owner, ConnectableQp qp, bool first)
    : owner(owner), qp(std::move(qp)), first(first) {
  ++owner.held_;
}

Task<absl::Status> FakeConnector::Connection::AwaitPeer() {
  co_return (co_await steps->Pop()).status();
}

Task<absl::Status> FakeConnector::Connection::AwaitEstablished() {
  co_return (co_await steps->Pop()).status();
}

absl::Status FakeConnector::Connection::FillIn(ibv_qp_attr& attributes, int& mask) {
  attributes.port_num = 1;
  attributes.path_mtu = IBV_MTU_4096;
  attributes.dest_qp_num = qp.peer_qp_number;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.grh.dgid = owner.gid_;
  if (attributes.qp_state == IBV_QPS_INIT) {
    mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  } else if (attributes.qp_state == IBV_QPS_RTR) {
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  } else {
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
           IBV_QP_MAX_QP_RD_ATOMIC;
  }
  return absl::OkStatus();
}

absl::Status FakeConnector::Connection::Confirm() {
  steps->Push(2);
  const std::shared_ptr<Connection> other = peer.lock();
  if (other != nullptr && !confirmed) {
    confirmed = other->confirmed = true;
    other->steps->Push(1);
  }
  return absl::OkStatus();
}

std::shared_ptr<FakeConnector::Connection> FakeConnector::Make(ConnectableQp qp, bool first) {
  auto connection = std::make_shared<Connection>(*this, std::move(qp), first);
  all_.push_back(connection);
  return connection;
}

}  // namespace verbena::internal
