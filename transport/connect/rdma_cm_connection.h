// CmConnection: one queue pair's way through rdma_cm, of either side.
//
// Shared by the channel's thread, which hears its events, and by the executor, which awaits its
// steps. The objects that Share() returned hold the connection. When the last of them is gone, the
// channel's thread destroys the id. A server's connection has no id until a request shows its
// token.

#ifndef VERBENA_TRANSPORT_CONNECT_RDMA_CM_CONNECTION_H_
#define VERBENA_TRANSPORT_CONNECT_RDMA_CM_CONNECTION_H_

#include <rdma/rdma_cma.h>

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "verbena/transport/connect/mailbox.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/connect/rdma_cm_address.h"
#include "verbena/transport/connect/rdma_cm_channel.h"
#include "verbena/transport/connect/rdma_cm_private_data.h"
#include "verbena/transport/connect/token_table.h"

namespace verbena::internal {

// Refuses a request, and destroys its id.
void RejectCmRequest(rdma_cm_id* id, RejectReason reason);

class CmConnection final : public QpConnection,
                           public CmEventListener,
                           public std::enable_shared_from_this<CmConnection> {
 public:
  using Waiting = TokenTable<CmConnection>;

  // `device` is the only one that it may run over; `peer` is for messages.
  CmConnection(std::shared_ptr<CmChannel> channel, std::string device, ConnectableQp qp,
               const std::string& peer);
  ~CmConnection() override;

  // Client: begins, from an address of this host. The outcome comes by AwaitPeer().
  void Start(const IpAddress& from, const RdmaCmService& to);
  // Server: waits for a request that shows `token`, which is in `waiting`.
  void ExpectToken(std::shared_ptr<Waiting> waiting, uint64_t token);
  // Server, on the channel's thread: takes the request that showed the token, and its id.
  void Adopt(const CmEvent& request);

  static std::shared_ptr<QpConnection> Share(std::shared_ptr<CmConnection> connection);

  Task<absl::Status> AwaitPeer() override;
  absl::Status FillIn(ibv_qp_attr& attributes, int& mask) override;
  bool client_sends_first() const override { return iwarp_; }
  absl::Status Confirm() override;
  Task<absl::Status> AwaitEstablished() override;

  void OnCmEvent(const CmEvent& event) override;

 private:
  enum class Step : uint8_t { kPeer, kEstablished };

  // All of these on the channel's thread.
  void Resolve(const IpAddress& from, const RdmaCmService& to);
  void ResolveRoute();
  void Request();
  void LimitAnswer();
  void End(const absl::Status& why);
  // Nobody holds the connection any more, or the connection has ended.
  void Destroy();

  void MarkEstablished();
  rdma_conn_param Parameters(const std::string& private_data) const;
  static Task<absl::Status> Await(std::shared_ptr<Mailbox<Step>> steps);

  const std::shared_ptr<CmChannel> channel_;
  const std::string device_;
  const ConnectableQp qp_;
  const std::string what_;  // "rdma_cm to 10.0.0.2:4000"
  const std::shared_ptr<Mailbox<Step>> steps_ = std::make_shared<Mailbox<Step>>();

  // For a server's connection.
  std::shared_ptr<Waiting> waiting_;
  uint64_t token_ = 0;
  bool accepted_ = false;

  // Set on the channel's thread, before the step that tells of it.
  rdma_cm_id* id_ = nullptr;
  bool iwarp_ = false;
  uint8_t reads_served_;
  uint8_t reads_started_;
  // The channel's thread only.
  boost::asio::steady_timer answer_limit_;
  bool ended_ = false;

  std::mutex mutex_;
  bool established_ = false;  // under mutex_
  bool held_ = true;          // under mutex_; if false, on_end is not called any more
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RDMA_CM_CONNECTION_H_
