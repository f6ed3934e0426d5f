#include "verbena/transport/connect/rdma_cm.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/host_port.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/connect/rdma_cm_private_data.h"
#include "verbena/transport/connect/rdma_cm_status.h"

namespace verbena::internal {
namespace {

// Requests that the kernel keeps until they are read; a client whose request is dropped repeats it.
constexpr int kBacklog = 128;
// A TCP socket may have a port that is free in rdma_cm. iWARP then cannot listen on that port.
constexpr int kListenTries = 8;

// Owns an id of the channel, and destroys it unless it was released.
class TemporaryId {
 public:
  TemporaryId(CmChannel& channel, rdma_cm_id* id) : channel_(channel), id_(id) {}
  TemporaryId(const TemporaryId&) = delete;
  TemporaryId& operator=(const TemporaryId&) = delete;
  ~TemporaryId() {
    if (id_ != nullptr) channel_.DestroyId(id_);
  }
  rdma_cm_id* get() const { return id_; }
  rdma_cm_id* release() { return std::exchange(id_, nullptr); }

 private:
  CmChannel& channel_;
  rdma_cm_id* id_;
};

// From the kernel, because nobody may be able to guess a token.
absl::StatusOr<uint64_t> NewToken() {
  uint64_t token = 0;
  if (getrandom(&token, sizeof(token), 0) == sizeof(token)) return token;
  return absl::UnavailableError("getrandom gives no token");
}

std::string Describe(const RdmaCmService& service) {
  return FormatHostPort(FormatIp(service.address), service.port);
}

}  // namespace

RdmaCm::RdmaCm(RdmaCmOptions options, std::shared_ptr<CmChannel> channel)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      waiting_(std::make_shared<CmConnection::Waiting>(kMaxExpectedConnections)) {}

absl::StatusOr<std::unique_ptr<RdmaCm>> RdmaCm::Start(RdmaCmOptions options) {
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<CmChannel> channel, CmChannel::Open());
  std::unique_ptr<RdmaCm> started(new RdmaCm(std::move(options), std::move(channel)));
  VERBENA_RETURN_IF_ERROR(started->MoveTo(started->options_.gid));
  return started;
}

// NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
RdmaCm::~RdmaCm() {
  channel_->Stop();
  if (listener_ != nullptr) (void)rdma_destroy_id(listener_);
}

absl::StatusOr<std::vector<IpAddress>> RdmaCm::FindAddresses(const ibv_gid& gid) {
  std::vector<IpAddress> found;
  for (const HostAddress& address : RankAddresses(ListAddresses(), options_.kind, gid)) {
    if (IsOnPort(address.ip)) found.push_back(address.ip);
  }
  if (!found.empty()) return found;
  return absl::FailedPreconditionError(fmt::format(
      "rdma_cm needs an IP address on port {} of {}, and no interface of it has one; give it one: "
      "ip addr add ADDRESS/PREFIX dev NETDEV",
      options_.port, options_.device));
}

absl::Status RdmaCm::MoveTo(const ibv_gid& gid) {
  VERBENA_ASSIGN_OR_RETURN(std::vector<IpAddress> found, FindAddresses(gid));
  std::lock_guard lock(mutex_);
  const bool moved = addresses_.empty() || addresses_.front() != found.front();
  addresses_ = std::move(found);
  if (!moved || listener_ == nullptr) return absl::OkStatus();
  channel_->DestroyId(std::exchange(listener_, nullptr));
  return absl::OkStatus();
}

std::vector<IpAddress> RdmaCm::addresses() const {
  std::lock_guard lock(mutex_);
  return addresses_;
}

bool RdmaCm::IsOnPort(const IpAddress& ip) {
  absl::StatusOr<rdma_cm_id*> created = channel_->CreateId(*this);
  if (!created.ok()) return false;
  const TemporaryId id(*channel_, *created);
  sockaddr_storage address = SocketAddress(ip, 0);
  if (rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)) != 0) return false;
  return id.get()->verbs != nullptr && id.get()->port_num == options_.port &&
         options_.device == ibv_get_device_name(id.get()->verbs->device);
}

// --- servers

absl::StatusOr<RdmaCmService> RdmaCm::Listen() {
  std::lock_guard lock(mutex_);
  const IpAddress& ip = addresses_.front();
  if (listener_ != nullptr) {
    return RdmaCmService{.address = ip, .port = ntohs(rdma_get_src_port(listener_))};
  }
  absl::StatusOr<uint16_t> port = ListenOnce(ip);
  for (int tries = 1; !port.ok() && tries < kListenTries; ++tries) port = ListenOnce(ip);
  VERBENA_RETURN_IF_ERROR(port.status());
  Log(LogLevel::kInfo, fmt::format("rdma_cm listens at {} on {}",
                                   FormatHostPort(FormatIp(ip), *port), options_.device));
  return RdmaCmService{.address = ip, .port = *port};
}

absl::StatusOr<uint16_t> RdmaCm::ListenOnce(const IpAddress& ip) {
  VERBENA_ASSIGN_OR_RETURN(rdma_cm_id * created, channel_->CreateId(*this));
  TemporaryId id(*channel_, created);
  sockaddr_storage address = SocketAddress(ip, 0);
  const std::string what = fmt::format("rdma_cm at {}", FormatIp(ip));
  if (rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)) != 0) {
    return RdmaCmCallStatus("rdma_bind_addr", errno, what);
  }
  if (rdma_listen(id.get(), kBacklog) != 0) return RdmaCmCallStatus("rdma_listen", errno, what);
  listener_ = id.release();
  return ntohs(rdma_get_src_port(listener_));
}

absl::StatusOr<std::shared_ptr<QpConnection>> RdmaCm::Expect(ConnectableQp qp,
                                                             RdmaCmService& service) {
  VERBENA_ASSIGN_OR_RETURN(RdmaCmService listening, Listen());
  VERBENA_ASSIGN_OR_RETURN(uint64_t token, NewToken());
  auto connection =
      std::make_shared<CmConnection>(channel_, options_.device, std::move(qp), "its client");
  connection->ExpectToken(waiting_, token);
  if (!waiting_->Add(token, connection)) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} connections wait for their clients' rdma_cm already", kMaxExpectedConnections));
  }
  service = listening;
  service.token = token;
  return CmConnection::Share(std::move(connection));
}

void RdmaCm::OnCmEvent(const CmEvent& event) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) return OnRequest(event);
  if (event.type != RDMA_CM_EVENT_DEVICE_REMOVAL) return;
  std::lock_guard lock(mutex_);
  if (event.id != listener_) return;
  Log(LogLevel::kWarning,
      fmt::format("{} is being removed: rdma_cm stops listening on it", options_.device));
  (void)rdma_destroy_id(std::exchange(listener_, nullptr));
}

void RdmaCm::OnRequest(const CmEvent& request) {
  const std::optional<uint64_t> token = ParseConnectData(request.private_data);
  std::shared_ptr<CmConnection> connection = token ? waiting_->Take(*token) : nullptr;
  if (connection != nullptr) return connection->Adopt(request);
  const RejectReason reason = token ? RejectReason::kUnknownToken : RejectReason::kMalformed;
  RejectCmRequest(request.id, reason);
  refusals_.Write(LogLevel::kWarning, Clock::Real().Now(),
                  fmt::format("rdma_cm on {}: a request is refused: {}", options_.device,
                              token ? "its token is unknown, was used before or came too late"
                                    : "its private data is none of Verbena's"));
}

// --- clients

absl::StatusOr<std::shared_ptr<QpConnection>> RdmaCm::Connect(ConnectableQp qp,
                                                              const RdmaCmService& service) {
  for (const IpAddress& from : addresses()) {
    if (IsIpv4(from) != IsIpv4(service.address)) continue;
    auto connection =
        std::make_shared<CmConnection>(channel_, options_.device, std::move(qp), Describe(service));
    connection->Start(from, service);
    return CmConnection::Share(std::move(connection));
  }
  return absl::FailedPreconditionError(
      fmt::format("rdma_cm to {}: {} has no {} address to connect from", Describe(service),
                  options_.device, IsIpv4(service.address) ? "IPv4" : "IPv6"));
}

}  // namespace verbena::internal
