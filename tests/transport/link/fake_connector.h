// FakeConnector: a connection manager for the soft device, in one thread. The test decides who
// sends first, and which requests are refused.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_FAKE_CONNECTOR_H_
#define VERBENA_TESTS_TRANSPORT_LINK_FAKE_CONNECTOR_H_

#include <infiniband/verbs.h>

#include <map>
#include <memory>
#include <string>
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
  void EndAll(const std::string& reason);

  absl::StatusOr<std::shared_ptr<QpConnection>> Expect(ConnectableQp qp,
                                                       RdmaCmService& service) override;
  absl::StatusOr<std::shared_ptr<QpConnection>> Connect(ConnectableQp qp,
                                                        const RdmaCmService& service) override;
  absl::Status MoveTo(const ibv_gid&) override;

 private:
  struct Connection final : QpConnection {
    Connection(FakeConnector& owner, ConnectableQp qp, bool first);
    ~Connection() override { --owner.held_; }

    Task<absl::Status> AwaitPeer() override;
    Task<absl::Status> AwaitEstablished() override;
    bool client_sends_first() const override { return first; }

    absl::Status FillIn(ibv_qp_attr& attributes, int& mask) override;

    // The server confirms first, which lets the client go on. The client's own confirmation wakes
    // nobody else.
    absl::Status Confirm() override;

    FakeConnector& owner;
    const ConnectableQp qp;
    const bool first;
    bool confirmed = false;
    std::weak_ptr<Connection> peer;
    const std::shared_ptr<Mailbox<int>> steps = std::make_shared<Mailbox<int>>();
  };

  std::shared_ptr<Connection> Make(ConnectableQp qp, bool first);

  ibv_gid gid_ = {};
  int held_ = 0;
  uint64_t last_token_ = 0;
  std::map<uint64_t, std::weak_ptr<Connection>> waiting_;
  std::vector<std::weak_ptr<Connection>> all_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_LINK_FAKE_CONNECTOR_H_
