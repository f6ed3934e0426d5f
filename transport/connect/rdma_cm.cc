#include "verbena/transport/connect/rdma_cm.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

using boost::system::error_code;

namespace {

// IPoIB's hardware address ends with the port's GID. An iWARP port's GID begins with the hardware
// address of its interface.
bool MadeOf(const ibv_gid& gid, LinkKind kind, const std::vector<uint8_t>& hardware) {
  if (hardware.empty() || hardware.size() > 32) return false;
  if (kind == LinkKind::kIwarp) {
    return hardware.size() <= sizeof(gid.raw) &&
           std::memcmp(gid.raw, hardware.data(), hardware.size()) == 0;
  }
  if (kind != LinkKind::kInfiniBand || hardware.size() < sizeof(gid.raw)) return false;
  return std::equal(hardware.end() - sizeof(gid.raw), hardware.end(), std::begin(gid.raw));
}

CmEvent Copy(const rdma_cm_event& event) {
  const rdma_conn_param& param = event.param.conn;
  CmEvent copy{.type = event.event,
               .status = event.status,
               .id = event.id,
               .qp_number = param.qp_num,
               .responder_resources = param.responder_resources,
               .initiator_depth = param.initiator_depth};
  if (param.private_data != nullptr && param.private_data_len > 0) {
    copy.private_data.assign(static_cast<const char*>(param.private_data), param.private_data_len);
  }
  return copy;
}

constexpr uint32_t kRdmaCmMagic = 0x4d435256;  // "VRCM" in little-endian order
constexpr uint8_t kVersion = 1;
constexpr size_t kTokenOffset = 8;

void Append(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

uint64_t Read(std::string_view bytes, size_t offset, int size) {
  uint64_t value = 0;
  for (int i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[offset + static_cast<size_t>(i)]);
    value |= static_cast<uint64_t>(byte) << (8 * i);
  }
  return value;
}

bool IsOurs(std::string_view bytes, size_t size) {
  return bytes.size() >= size && Read(bytes, 0, 4) == kRdmaCmMagic && Read(bytes, 4, 1) == kVersion;
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

// Reasons of a REJ that a correct peer or a common mistake leads to; others by number alone.
const char* RejectText(int reason) {
  switch (reason) {
    case 1:
      return "no queue pair is free there";
    case 3:
      return "the peer's kernel has no resources for it";
    case 4:
      return "the peer's kernel timed it out";
    case 5:
      return "the peer's kernel does not support the request";
    case 6:
    case 7:
      return "the peer's kernel knows no such connection";
    case 8:
      return "nobody listens there";
    case 9:
      return "the peer does not serve reliable connections";
    case 10:
      return "stale connection: the peer still holds a former one of this queue pair number";
    case 12:
      return "the peer's port does not have that GID";
    case 13:
      return "the peer's port does not have that LID";
    case 14:
      return "the peer refuses the service level";
    case 15:
      return "the peer refuses the traffic class";
    case 16:
      return "the peer refuses the hop limit";
    case 17:
      return "the peer refuses the packet rate";
    case 24:
    case 25:
      return "the peer asks for another port";
    case 26:
      return "the peer refuses the path MTU";
    case 27:
      return "the peer cannot serve so many READs";
    case 28:
      return "the peer refuses it";
    case 29:
      return "the peer refuses the RNR retry count";
    case 30:
      return "the peer's kernel holds a connection of the same id";
    case 31:
      return "the peer speaks another version of the CM";
    case 32:
      return "the peer refuses the flow label";
    default:
      return "the peer's kernel refuses it";
  }
}

std::string ErrorText(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
      return "nobody listens there, or the peer refuses it";
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "there is no route to it";
    case ETIMEDOUT:
      return "it does not answer";
    case ENODEV:
      return "the address is not on an RDMA device, or cannot be reached through one";
    case EADDRNOTAVAIL:
      return "the address is not one of this host's";
    default:
      return ErrnoText(error);
  }
}

absl::StatusCode CodeOf(rdma_cm_event_type event, int status) {
  constexpr int kNoResources = 3;
  if (event == RDMA_CM_EVENT_REJECTED && status == kNoResources) {
    return absl::StatusCode::kResourceExhausted;
  }
  return absl::StatusCode::kUnavailable;
}

// For resolving the address, and again for the route. Short enough that the cause is reported
// before the link's own limit ends the attempt.
constexpr int kResolveTimeoutMs = 3000;
// How long to wait for the answer to a request. The kernel repeats it for a minute before it gives
// up.
constexpr auto kAnswerTimeout = std::chrono::seconds(5);
// Both fields are three bits wide. An RNR retry count of 7 means without end.
constexpr uint8_t kRetryCount = 7;
constexpr uint8_t kRnrRetryCount = 7;

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
  // NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
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

// Before the id has a route: the route is chosen by it.
absl::Status SetTrafficClass(rdma_cm_id* id, uint8_t traffic_class, const std::string& what) {
  if (traffic_class == 0) return absl::OkStatus();
  if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &traffic_class,
                      sizeof(traffic_class)) == 0) {
    return absl::OkStatus();
  }
  return RdmaCmCallStatus("rdma_set_option", errno, what);
}

std::string Describe(const RdmaCmService& service) {
  return SocketAddress(service.address, service.port).text();
}

}  // namespace

std::vector<HostAddress> ListAddresses() {
  std::vector<HostAddress> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  std::map<std::string, std::vector<uint8_t>> hardware;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    if (each->ifa_addr->sa_family == AF_PACKET) {
      const auto& link = reinterpret_cast<const sockaddr_ll&>(*each->ifa_addr);
      // glibc leaves room for as long an address as there is, IPoIB's 20 bytes among them.
      const uint8_t* bytes = link.sll_addr;
      hardware[each->ifa_name].assign(bytes, bytes + link.sll_halen);
      continue;
    }
    const SocketAddress address(*each->ifa_addr);
    const IpAddress ip = address.ip();
    const bool usable = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable || !address.has_value() || IsLinkLocal(ip)) continue;
    addresses.push_back({.interface = each->ifa_name, .hardware = {}, .ip = ip});
  }
  freeifaddrs(list);
  for (HostAddress& address : addresses) address.hardware = hardware[address.interface];
  return addresses;
}

std::vector<HostAddress> RankAddresses(const std::vector<HostAddress>& all, LinkKind kind,
                                       const ibv_gid& gid) {
  std::vector<HostAddress> likely;
  for (const HostAddress& address : all) {
    if (std::equal(address.ip.begin(), address.ip.end(), std::begin(gid.raw))) {
      likely.insert(likely.begin(), address);
    } else if (MadeOf(gid, kind, address.hardware)) {
      likely.push_back(address);
    }
  }
  return likely.empty() ? all : likely;
}

CmChannel::CmChannel(std::shared_ptr<IoThread> io, rdma_event_channel* channel)
    : io_(std::move(io)), channel_(channel), descriptor_(io_->context()) {}

CmChannel::~CmChannel() {
  if (descriptor_.is_open()) descriptor_.release();
  rdma_destroy_event_channel(channel_);
}

absl::StatusOr<std::shared_ptr<CmChannel>> CmChannel::Open() {
  rdma_event_channel* channel = rdma_create_event_channel();
  if (channel == nullptr) {
    return absl::UnavailableError(fmt::format(
        "rdma_cm cannot be used: {}; load its module, and give access to /dev/infiniband/rdma_cm: "
        "modprobe rdma_ucm",
        std::string(
            RdmaCmCallStatus("rdma_create_event_channel", errno, "no event channel").message())));
  }
  absl::StatusOr<std::shared_ptr<IoThread>> io = IoThread::Start();
  if (!io.ok()) {
    rdma_destroy_event_channel(channel);
    return io.status();
  }
  std::shared_ptr<CmChannel> opened(new CmChannel(*std::move(io), channel));
  const int flags = fcntl(channel->fd, F_GETFL);
  error_code error;
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return RdmaCmCallStatus("fcntl", errno, "rdma_cm's event channel");
  }
  opened->descriptor_.assign(channel->fd, error);
  if (error) return RdmaCmCallStatus("epoll_ctl", error.value(), "rdma_cm's event channel");
  opened->Post([opened] {
    opened->io_->Register(opened);
    opened->ReadWhenReady();
  });
  return opened;
}

absl::StatusOr<rdma_cm_id*> CmChannel::CreateId(CmEventListener& handler) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel_, &id, &handler, RDMA_PS_TCP) != 0) {
    return RdmaCmCallStatus("rdma_create_id", errno, "rdma_cm");
  }
  return id;
}

void CmChannel::DestroyId(rdma_cm_id* id) {
  const auto destroy = [id] { (void)rdma_destroy_id(id); };
  if (!Post(destroy)) destroy();
}

void CmChannel::CloseOnThread() {
  error_code ignored;
  descriptor_.cancel(ignored);
  // The event channel owns the descriptor.
  if (descriptor_.is_open()) descriptor_.release();
}

void CmChannel::ReadWhenReady() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](const error_code& error) {
                           if (error || !self->descriptor_.is_open()) return;
                           if (self->ReadAll()) self->ReadWhenReady();
                         });
}

bool CmChannel::ReadAll() {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(channel_, &event) == 0) {
    const CmEvent copy = Copy(*event);
    rdma_ack_cm_event(event);
    static_cast<CmEventListener*>(copy.id->context)->OnCmEvent(copy);
  }
  if (errno == EAGAIN || errno == EINTR) return true;
  VERBENA_LOG_LINE(
      kConnect, kError,
      RdmaCmCallStatus("rdma_get_cm_event", errno, "no more events of rdma_cm").ToString());
  return false;
}

std::string EncodeConnectData(uint64_t token) {
  std::string bytes;
  Append(bytes, kRdmaCmMagic, 4);
  Append(bytes, kVersion, 1);
  Append(bytes, 0, 3);
  Append(bytes, token, 8);
  return bytes;
}

std::optional<uint64_t> ParseConnectData(std::string_view bytes) {
  if (!IsOurs(bytes, kConnectDataBytes)) return std::nullopt;
  return Read(bytes, kTokenOffset, 8);
}

const char* RejectReasonText(RejectReason reason) {
  switch (reason) {
    case RejectReason::kOther:
      break;
    case RejectReason::kMalformed:
      return "the server does not understand the request's private data";
    case RejectReason::kUnknownToken:
      return "the server does not know the token: it was used before, or came too late";
    case RejectReason::kWrongQueuePair:
      return "the request is for another queue pair than the handshake named";
    case RejectReason::kGone:
      return "the server gave up waiting for it";
  }
  return "the server refuses it";
}

std::string EncodeRejectData(RejectReason reason) {
  std::string bytes;
  Append(bytes, kRdmaCmMagic, 4);
  Append(bytes, kVersion, 1);
  Append(bytes, static_cast<uint8_t>(reason), 1);
  Append(bytes, 0, 2);
  return bytes;
}

std::optional<RejectReason> ParseRejectData(std::string_view bytes) {
  if (!IsOurs(bytes, kRejectDataBytes)) return std::nullopt;
  const uint64_t reason = Read(bytes, 5, 1);
  const bool known = reason <= static_cast<uint64_t>(RejectReason::kGone);
  return known ? static_cast<RejectReason>(reason) : RejectReason::kOther;
}

absl::Status RdmaCmStatus(rdma_cm_event_type event, int status, std::string_view private_data,
                          const std::string& what) {
  std::string text;
  if (event == RDMA_CM_EVENT_REJECTED) {
    const std::optional<RejectReason> ours = ParseRejectData(private_data);
    text = ours ? RejectReasonText(*ours) : status < 0 ? ErrorText(-status) : RejectText(status);
  } else if (event == RDMA_CM_EVENT_DISCONNECTED) {
    text = "the peer disconnected";
  } else if (event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    text = "the device is being removed";
  } else if (event == RDMA_CM_EVENT_UNREACHABLE && status >= 0) {
    text = "it does not answer";
  } else {
    text = status == 0 ? "failed" : ErrorText(status < 0 ? -status : status);
  }
  return absl::Status(CodeOf(event, status), fmt::format("{}: {} ({}, status {})", what, text,
                                                         rdma_event_str(event), status));
}

absl::Status RdmaCmCallStatus(const char* call, int error, const std::string& what) {
  return absl::UnavailableError(
      fmt::format("{}: {} ({}: {})", what, ErrorText(error), call, ErrnoText(error)));
}

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

CmConnection::~CmConnection() {
  VERBENA_CHECK(id_ == nullptr) << what_ << ": its id would tell events to an object that is gone";
}

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

void CmConnection::Start(const IpAddress& from, const RdmaCmService& to, uint8_t traffic_class) {
  token_ = to.token;
  const bool posted = channel_->Post([self = shared_from_this(), from, to, traffic_class] {
    self->Resolve(from, to, traffic_class);
  });
  if (!posted) steps_->Finish(absl::CancelledError("rdma_cm was stopped"));
}

void CmConnection::ExpectToken(std::shared_ptr<Waiting> waiting, uint64_t token) {
  waiting_ = std::move(waiting);
  token_ = token;
}

// --- the client's steps

void CmConnection::Resolve(const IpAddress& from, const RdmaCmService& to, uint8_t traffic_class) {
  VERBENA_CHECK(id_ == nullptr && waiting_ == nullptr) << what_ << " begins twice";
  absl::StatusOr<rdma_cm_id*> id = channel_->CreateId(*this);
  if (!id.ok()) return End(id.status());
  id_ = *id;
  if (absl::Status status = SetTrafficClass(id_, traffic_class, what_); !status.ok()) {
    return End(status);
  }
  SocketAddress source(from, 0);
  SocketAddress target(to.address, to.port);
  if (rdma_resolve_addr(id_, source.get(), target.get(), kResolveTimeoutMs) != 0) {
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
  VERBENA_CHECK(id_ == nullptr && waiting_ != nullptr) << what_ << " takes two requests";
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
    VERBENA_LOG_LINE(kConnect, kWarning,
                     RdmaCmCallStatus("rdma_destroy_id", errno, what_).ToString());
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
  VERBENA_CHECK(id_ != nullptr) << what_ << ": the peer is not known yet";
  if (rdma_init_qp_attr(id_, &attributes, &mask) == 0) return absl::OkStatus();
  return RdmaCmCallStatus("rdma_init_qp_attr", errno, what_);
}

absl::Status CmConnection::Confirm() {
  VERBENA_CHECK(id_ != nullptr && !accepted_) << what_ << ": accepted " << accepted_;
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
  SocketAddress address(ip, 0);
  if (rdma_bind_addr(id.get(), address.get()) != 0) return false;
  return id.get()->verbs != nullptr && id.get()->port_num == options_.port &&
         options_.device == ibv_get_device_name(id.get()->verbs->device);
}

// --- servers

absl::StatusOr<RdmaCmService> RdmaCm::Listen() {
  std::lock_guard lock(mutex_);
  VERBENA_CHECK(!addresses_.empty()) << options_.device << " was never told its addresses";
  const IpAddress& ip = addresses_.front();
  if (listener_ != nullptr) {
    return RdmaCmService{.address = ip, .port = ntohs(rdma_get_src_port(listener_))};
  }
  absl::StatusOr<uint16_t> port = ListenOnce(ip);
  for (int tries = 1; !port.ok() && tries < kListenTries; ++tries) port = ListenOnce(ip);
  VERBENA_RETURN_IF_ERROR(port.status());
  VERBENA_LOG_LINE(
      kConnect, kInfo,
      fmt::format("rdma_cm listens at {} on {}", SocketAddress(ip, *port).text(), options_.device),
      {{"device", options_.device}});
  return RdmaCmService{.address = ip, .port = *port};
}

absl::StatusOr<uint16_t> RdmaCm::ListenOnce(const IpAddress& ip) {
  VERBENA_ASSIGN_OR_RETURN(rdma_cm_id * created, channel_->CreateId(*this));
  TemporaryId id(*channel_, created);
  SocketAddress address(ip, 0);
  const std::string what = fmt::format("rdma_cm at {}", FormatIp(ip));
  VERBENA_RETURN_IF_ERROR(SetTrafficClass(id.get(), options_.traffic_class, what));
  if (rdma_bind_addr(id.get(), address.get()) != 0) {
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
  VERBENA_LOG_LINE(
      kConnect, kWarning,
      fmt::format("{} is being removed: rdma_cm stops listening on it", options_.device),
      {{"device", options_.device}});
  (void)rdma_destroy_id(std::exchange(listener_, nullptr));
}

void RdmaCm::OnRequest(const CmEvent& request) {
  const std::optional<uint64_t> token = ParseConnectData(request.private_data);
  std::shared_ptr<CmConnection> connection = token ? waiting_->Take(*token) : nullptr;
  if (connection != nullptr) return connection->Adopt(request);
  const RejectReason reason = token ? RejectReason::kUnknownToken : RejectReason::kMalformed;
  RejectCmRequest(request.id, reason);
  VERBENA_LOG_THROTTLED(refusals_, kWarning, Clock::Real().Now(),
                        fmt::format("rdma_cm on {}: a request is refused: {}", options_.device,
                                    token ? "its token is unknown, was used before or came too late"
                                          : "its private data is none of Verbena's"),
                        {{"device", options_.device}});
}

// --- clients

absl::StatusOr<std::shared_ptr<QpConnection>> RdmaCm::Connect(ConnectableQp qp,
                                                              const RdmaCmService& service) {
  for (const IpAddress& from : addresses()) {
    if (IsIpv4(from) != IsIpv4(service.address)) continue;
    auto connection =
        std::make_shared<CmConnection>(channel_, options_.device, std::move(qp), Describe(service));
    connection->Start(from, service, options_.traffic_class);
    return CmConnection::Share(std::move(connection));
  }
  return absl::FailedPreconditionError(
      fmt::format("rdma_cm to {}: {} has no {} address to connect from", Describe(service),
                  options_.device, IsIpv4(service.address) ? "IPv4" : "IPv6"));
}

}  // namespace verbena::internal
