#include "verbena/transport/connect/rdma_cm_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/connect/rdma_cm_status.h"

namespace verbena::internal {
namespace {

// For resolving the address, and again for the route. Short enough that the cause is reported
// before the link's own limit ends the attempt.
constexpr int kResolveTimeoutMs = 3000;
// How long to wait for the answer to a request. The kernel repeats it for a minute before it gives
// up.
constexpr auto kAnswerTimeout = std::chrono::seconds(5);
// Both fields are three bits wide. An RNR retry count of 7 means without end.
constexpr uint8_t kRetryCount = 7;
constexpr uint8_t kRnrRetryCount = 7;

}  // namespace

void RejectCmRequest(rdma_cm_id* id, RejectReason reason) {
  const std::string data = EncodeRejectData(reason);
  // An error means that the request has ended already.
  (void)rdma_reject(id, data.data(), static_cast<uint8_t>(data.size()));
  (void)rdma_destroy_id(id);
}

CmConnection::CmConnection(std::shared_ptr<CmChannel> channel, std::string device, ConnectableQp qp,
                           const std::string& peer)
    : channel_(std::move(channel)),
      device_(std::move(device)),
      qp_(std::move(qp)),
      what_("rdma_cm to " + peer),
      reads_served_(qp_.reads_served),
      reads_started_(qp_.reads_started),
      answer_limit_(channel_->context()) {}

CmConnection::~CmConnection() = default;

std::shared_ptr<QpConnection> CmConnection::Share(std::shared_ptr<CmConnection> connection) {
  CmConnection* raw = connection.get();
  return {raw, [connection = std::move(connection)](QpConnection*) {
            {
              std::lock_guard lock(connection->mutex_);
              connection->held_ = false;
            }
            if (!connection->channel_->Post([connection] { connection->Destroy(); })) {
              connection->Destroy();
            }
          }};
}

void CmConnection::Start(const IpAddress& from, const RdmaCmService& to) {
  token_ = to.token;
  const bool posted =
      channel_->Post([self = shared_from_this(), from, to] { self->Resolve(from, to); });
  if (!posted) steps_->Finish(absl::CancelledError("rdma_cm was stopped"));
}

void CmConnection::ExpectToken(std::shared_ptr<Waiting> waiting, uint64_t token) {
  waiting_ = std::move(waiting);
  token_ = token;
}

// --- the client's steps

void CmConnection::Resolve(const IpAddress& from, const RdmaCmService& to) {
  absl::StatusOr<rdma_cm_id*> id = channel_->CreateId(*this);
  if (!id.ok()) return End(id.status());
  id_ = *id;
  sockaddr_storage source = SocketAddress(from, 0);
  sockaddr_storage target = SocketAddress(to.address, to.port);
  if (rdma_resolve_addr(id_, reinterpret_cast<sockaddr*>(&source),
                        reinterpret_cast<sockaddr*>(&target), kResolveTimeoutMs) != 0) {
    End(RdmaCmCallStatus("rdma_resolve_addr", errno, what_));
  }
}

void CmConnection::ResolveRoute() {
  const std::string device = ibv_get_device_name(id_->verbs->device);
  if (device != device_) {
    return End(absl::FailedPreconditionError(
        fmt::format("{}: it is reached through {}, not {}", what_, device, device_)));
  }
  iwarp_ = id_->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
  if (rdma_resolve_route(id_, kResolveTimeoutMs) != 0) {
    End(RdmaCmCallStatus("rdma_resolve_route", errno, what_));
  }
}

void CmConnection::Request() {
  const std::string data = EncodeConnectData(token_);
  rdma_conn_param parameters = Parameters(data);
  if (rdma_connect(id_, &parameters) != 0) {
    return End(RdmaCmCallStatus("rdma_connect", errno, what_));
  }
  LimitAnswer();
}

void CmConnection::LimitAnswer() {
  answer_limit_.expires_after(kAnswerTimeout);
  answer_limit_.async_wait([weak = weak_from_this()](const boost::system::error_code& cancelled) {
    const std::shared_ptr<CmConnection> self = weak.lock();
    if (cancelled || self == nullptr) return;
    self->End(absl::UnavailableError(fmt::format("{}: it does not answer: {} s have passed",
                                                 self->what_, kAnswerTimeout.count())));
  });
}

// --- the server's

void CmConnection::Adopt(const CmEvent& request) {
  iwarp_ = request.id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
  // iWARP tells no queue pair numbers.
  if (!iwarp_ && request.qp_number != qp_.peer_qp_number) {
    RejectCmRequest(request.id, RejectReason::kWrongQueuePair);
    return End(absl::InvalidArgumentError(
        fmt::format("{}: it asks for queue pair {:#x}, and {:#x} was offered", what_,
                    request.qp_number, qp_.peer_qp_number)));
  }
  id_ = request.id;
  id_->context = static_cast<CmEventListener*>(this);
  reads_served_ = std::min(reads_served_, request.responder_resources);
  reads_started_ = std::min(reads_started_, request.initiator_depth);
  steps_->Push(Step::kPeer);
}

// --- both

rdma_conn_param CmConnection::Parameters(const std::string& private_data) const {
  rdma_conn_param parameters{};
  parameters.private_data = private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(private_data.size());
  parameters.responder_resources = reads_served_;
  parameters.initiator_depth = reads_started_;
  parameters.retry_count = kRetryCount;
  parameters.rnr_retry_count = kRnrRetryCount;
  parameters.srq = 1;
  parameters.qp_num = qp_.qp_number;
  return parameters;
}

void CmConnection::OnCmEvent(const CmEvent& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      return ResolveRoute();
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return Request();
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      answer_limit_.cancel();
      steps_->Push(Step::kPeer);
      return;
    case RDMA_CM_EVENT_ESTABLISHED:
      // A client gets this event only if the kernel has moved the queue pair by itself (iWARP).
      answer_limit_.cancel();
      if (waiting_ == nullptr) steps_->Push(Step::kPeer);
      return MarkEstablished();
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return End(RdmaCmStatus(event.type, event.status, event.private_data, what_));
    default:
      return;
  }
}

void CmConnection::MarkEstablished() {
  {
    std::lock_guard lock(mutex_);
    established_ = true;
  }
  steps_->Push(Step::kEstablished);
}

void CmConnection::End(const absl::Status& why) {
  answer_limit_.cancel();
  if (std::exchange(ended_, true)) return;
  steps_->Finish(why);
  std::lock_guard lock(mutex_);
  if (established_ && held_ && qp_.on_end != nullptr) qp_.on_end(std::string(why.message()));
}

void CmConnection::Destroy() {
  answer_limit_.cancel();
  if (waiting_ != nullptr) waiting_->Remove(token_);
  rdma_cm_id* id = std::exchange(id_, nullptr);
  if (id == nullptr) return;
  if (waiting_ != nullptr && !accepted_) return RejectCmRequest(id, RejectReason::kGone);
  // For an established connection, this sends the disconnect, too.
  if (rdma_destroy_id(id) != 0) {
    Log(LogLevel::kWarning, RdmaCmCallStatus("rdma_destroy_id", errno, what_).ToString());
  }
}

// --- the executor's

Task<absl::Status> CmConnection::Await(std::shared_ptr<Mailbox<Step>> steps) {
  co_return (co_await steps->Pop()).status();
}

VERBENA_CORO_WRAPPER Task<absl::Status> CmConnection::AwaitPeer() { return Await(steps_); }

VERBENA_CORO_WRAPPER Task<absl::Status> CmConnection::AwaitEstablished() { return Await(steps_); }

absl::Status CmConnection::FillIn(ibv_qp_attr& attributes, int& mask) {
  mask = 0;
  if (iwarp_) return absl::OkStatus();
  if (rdma_init_qp_attr(id_, &attributes, &mask) == 0) return absl::OkStatus();
  return RdmaCmCallStatus("rdma_init_qp_attr", errno, what_);
}

absl::Status CmConnection::Confirm() {
  if (waiting_ != nullptr) {
    accepted_ = true;
    const std::string nothing;
    rdma_conn_param parameters = Parameters(nothing);
    if (rdma_accept(id_, &parameters) == 0) return absl::OkStatus();
    return RdmaCmCallStatus("rdma_accept", errno, what_);
  }
  if (iwarp_) return absl::OkStatus();  // established already
  if (rdma_establish(id_) != 0) return RdmaCmCallStatus("rdma_establish", errno, what_);
  MarkEstablished();
  return absl::OkStatus();
}

}  // namespace verbena::internal
