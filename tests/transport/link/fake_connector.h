// FakeConnector: a connection manager for the soft device, in one thread. The test decides who
// sends first, and which requests are refused.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_FAKE_CONNECTOR_H_
#define VERBENA_TESTS_TRANSPORT_LINK_FAKE_CONNECTOR_H_

#include <infiniband/verbs.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/mailbox.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {

class FakeConnector final : public QpConnector {
 public:
  enum class Rule { kNone, kClientFirst, kServerWaits };

  // Whether the client must send first, as iWARP demands. With kServerWaits, only the server's side
  // of a connection says so.
  Rule rule = Rule::kNone;
  // Unless OK, clients' requests are refused with this status.
  absl::Status refusal;
  // MoveTo() returns this, and counts its calls.
  absl::Status move_status;
  int moves = 0;

  void set_device(SoftDevice& device) { gid_ = *device.QueryGid(1, 0); }
  // Connections that somebody holds.
  int held() const { return held_; }
  // Ends all connections, as if the peers had disconnected.
  void EndAll(const std::string& reason) {
    for (const auto& weak : all_) {
      if (auto connection = weak.lock()) connection->qp.on_end(reason);
    }
  }

  absl::StatusOr<std::shared_ptr<QpConnection>> Expect(ConnectableQp qp,
                                                       RdmaCmService& service) override {
    service = {.address = {0xfd}, .port = 7, .token = ++last_token_};
    auto connection = Make(std::move(qp), rule != Rule::kNone);
    waiting_[last_token_] = connection;
    return std::shared_ptr<QpConnection>(connection);
  }

  absl::StatusOr<std::shared_ptr<QpConnection>> Connect(ConnectableQp qp,
                                                        const RdmaCmService& service) override {
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

  absl::Status MoveTo(const ibv_gid&) override {
    ++moves;
    return move_status;
  }

 private:
  struct Connection final : QpConnection {
    Connection(FakeConnector& owner, ConnectableQp qp, bool first)
        : owner(owner), qp(std::move(qp)), first(first) {
      ++owner.held_;
    }
    ~Connection() override { --owner.held_; }

    Task<absl::Status> AwaitPeer() override { co_return (co_await steps->Pop()).status(); }
    Task<absl::Status> AwaitEstablished() override { co_return (co_await steps->Pop()).status(); }
    bool client_sends_first() const override { return first; }

    absl::Status FillIn(ibv_qp_attr& attributes, int& mask) override {
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

    // The server confirms first, which lets the client go on. The client's own confirmation wakes
    // nobody else.
    absl::Status Confirm() override {
      steps->Push(2);
      const std::shared_ptr<Connection> other = peer.lock();
      if (other != nullptr && !confirmed) {
        confirmed = other->confirmed = true;
        other->steps->Push(1);
      }
      return absl::OkStatus();
    }

    FakeConnector& owner;
    const ConnectableQp qp;
    const bool first;
    bool confirmed = false;
    std::weak_ptr<Connection> peer;
    const std::shared_ptr<Mailbox<int>> steps = std::make_shared<Mailbox<int>>();
  };

  std::shared_ptr<Connection> Make(ConnectableQp qp, bool first) {
    auto connection = std::make_shared<Connection>(*this, std::move(qp), first);
    all_.push_back(connection);
    return connection;
  }

  ibv_gid gid_ = {};
  int held_ = 0;
  uint64_t last_token_ = 0;
  std::map<uint64_t, std::weak_ptr<Connection>> waiting_;
  std::vector<std::weak_ptr<Connection>> all_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_LINK_FAKE_CONNECTOR_H_
