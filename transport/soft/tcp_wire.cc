#include "verbena/transport/soft/tcp_wire.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/tcp_lane.h"

namespace verbena::internal::soft {
namespace {

// Between two looks for lanes that are over, which take a few microseconds for each CQ. (start)
constexpr Duration kSweepPause = std::chrono::milliseconds(10);
// In-lanes of one CQ: as many as it has activity bits.
constexpr uint64_t kMaxLanesOfCq = CqControl::kActivityWords * 64;

// Connections that have greeted, and those that are dialed: three quarters of the descriptors that
// this process may have. It may change the limit at any time.
uint64_t MaxSockets() {
  constexpr uint64_t kUnlimited = 1u << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kUnlimited;
  return std::min<uint64_t>(limit.rlim_cur, kUnlimited) / 4 * 3;
}

constexpr Duration kDialPatience = std::chrono::seconds(5);  // (start)
// Longer than the peer's own patience, so that it is the peer who says that its dial failed.
constexpr Duration kAskPatience = std::chrono::seconds(10);
// For the peer's dial, if ours has failed. (start)
constexpr Duration kPeersTurn = std::chrono::seconds(1);
// Lane connections of one session: more than two devices make in practice, and a bound for a faulty
// peer.
constexpr size_t kMaxCqPairs = 4096;

// From accepting, or from dialing, until the other side's greeting. (start)
constexpr Duration kGreetingPatience = std::chrono::seconds(5);
// Without descriptors: long enough not to spin, short for who connects.
constexpr Duration kAcceptDelay = std::chrono::milliseconds(100);
constexpr size_t kAcceptsAtOnce = 32;
// Control messages that a peer does not read, beyond what its socket holds: over 1,600. (start)
constexpr size_t kMaxOutgoing = 64u << 10;

size_t MaxSilent() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return TcpWire::kMaxSilent;
  return std::clamp<size_t>(limit.rlim_cur / 8, 1, TcpWire::kMaxSilent);
}

absl::Status NobodyWaits() { return absl::CancelledError("nobody waits for it any more"); }

// Connections that the kernel keeps for us until we accept them.
constexpr int kBacklog = 256;

absl::StatusOr<IpAddress> ParseOwnAddress(const std::string& text) {
  const std::optional<IpAddress> ip = ParseIp(text);
  if (!ip.has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("the TCP wire's address \"{}\" is no numeric IPv4 or IPv6 address: name one "
                    "of this host, or none for all of them",
                    text));
  }
  if (IsLinkLocal(*ip)) {
    return absl::InvalidArgumentError(
        fmt::format("the TCP wire's address {} is link-local, and means nothing on other hosts: "
                    "name another one",
                    text));
  }
  return *ip;
}

// IPv4 goes before IPv6.
IpAddress FirstAddress() {
  const std::vector<IpAddress> all = HostAddresses(/*reachable=*/true);
  if (all.empty()) return *ParseIp("127.0.0.1");
  const auto ipv4 = std::ranges::find_if(all, IsIpv4);
  return ipv4 != all.end() ? *ipv4 : all.front();
}

absl::Status ListenError(int error, const SocketAddress& at) {
  const std::string host = IsWildcard(at.ip()) ? "every address" : FormatIp(at.ip());
  const std::string name = at.port() == 0 ? "any TCP port of " + host
                                          : fmt::format("TCP port {} of {}", at.port(), host);
  switch (error) {
    case EADDRINUSE:
      return absl::FailedPreconditionError(fmt::format(
          "{} is in use (EADDRINUSE): name another port, or 0 for any that is free", name));
    case EACCES:
      return absl::PermissionDeniedError(
          fmt::format("{} needs privileges (EACCES): name a port of 1024 or above", name));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          fmt::format("{}: this host has no such address (EADDRNOTAVAIL); name one of its own, or "
                      "none for all of them",
                      name));
    default:
      return ErrnoStatus(error, "listening on " + name);
  }
}

absl::StatusOr<UniqueFd> ListenAt(const SocketAddress& at, bool both_families) {
  UniqueFd fd = OpenTcpSocket(at.family());
  if (!fd) return ErrnoStatus(errno, "the TCP socket of a soft device");
  if (!BindTcpSocket(fd.get(), at, {.both_families = both_families}) ||
      listen(fd.get(), kBacklog) != 0) {
    return ListenError(errno, at);
  }
  return fd;
}

// `from` is our own address: a device that listens on one address dials from it.
absl::StatusOr<UniqueFd> DialTcp(const DeviceAddress& to, const DeviceAddress* from) {
  if (to.lid == 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} names no TCP port: the device there has no TCP wire", AddressText(to)));
  }
  const SocketAddress target = to.tcp();
  UniqueFd fd = OpenTcpSocket(target.family());
  if (!fd) return ErrnoStatus(errno, "a TCP socket to another soft device");
  if (from != nullptr && from->tcp().family() == target.family()) {
    // Best effort: without it the kernel chooses.
    const SocketAddress source(from->ip(), 0);
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    std::ignore = bind(fd.get(), source.get(), source.size());
  }
  if (const int error = StartConnect(fd.get(), target); error != 0) {
    return ErrnoStatus(error, "connecting to " + AddressText(to));
  }
  return fd;
}

}  // namespace

absl::StatusOr<TcpWireListener> ListenTcp(const std::string& address, uint16_t port) {
  IpAddress ip{};
  if (!address.empty()) {
    VERBENA_ASSIGN_OR_RETURN(ip, ParseOwnAddress(address));
  }
  TcpWireListener listener{.everywhere = IsWildcard(ip)};
  if (listener.everywhere) ip = {};
  absl::StatusOr<UniqueFd> socket = ListenAt(SocketAddress(ip, port), listener.everywhere);
  // A kernel without IPv6. If somebody has the port, it is theirs over IPv4, too.
  if (listener.everywhere && !socket.ok() && !absl::IsFailedPrecondition(socket.status())) {
    auto v4 = ListenAt(SocketAddress(*ParseIp("0.0.0.0"), port), false);
    if (v4.ok()) socket = std::move(v4);
  }
  VERBENA_RETURN_IF_ERROR(socket.status());
  listener.socket = *std::move(socket);
  std::ranges::copy(listener.everywhere ? FirstAddress() : ip, listener.address.gid.raw);
  listener.address.lid = SocketAddress::OfSocket(listener.socket.get()).port();
  if (listener.address.lid == 0) return ErrnoStatus(errno, "getsockname");
  return listener;
}

// TcpWire: sockets and greetings.

TcpWire::TcpWire(SoftState& state, WireHost& host, TcpWireListener listener)
    : state_(state),
      host_(host),
      listener_(std::move(listener)),
      // A host often has several IPv6 addresses, of which the kernel may choose another one.
      dial_from_own_address_(!listener_.everywhere || (!IsIpv4(listener_.address.ip()) &&
                                                       !IsLoopback(listener_.address.ip()))),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

TcpWire::~TcpWire() {
  // A child of this process may hold copies of the descriptors: its listening would keep the port,
  // and have peers wait for greetings.
  shutdown(listener_.socket.get(), SHUT_RDWR);
  for (const auto& [_, connection] : connections_) shutdown(connection->socket.get(), SHUT_RDWR);
}

absl::Status TcpWire::Start() {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.socket.get(), &event) != 0) {
    return ErrnoStatus(errno, "the epoll of a soft device");
  }
  VERBENA_ASSIGN_OR_RETURN(SharedRegion controls,
                           SharedRegion::Anonymous(sizeof(CqControl) * kMaxCompletionQueues));
  controls_ = std::make_shared<SharedRegion>(std::move(controls));
  return absl::OkStatus();
}

void TcpWire::Connect(const ConnectRequest& request) {
  std::lock_guard<std::mutex> lock(requests_mutex_);
  requests_.push_back(request);
}

void TcpWire::Forget(const ConnectRequest& request) {
  std::lock_guard<std::mutex> lock(requests_mutex_);
  forgotten_.push_back(request);
}

bool TcpWire::Serve(TimePoint now) {
  now_ = now;
  TakeRequests();
  if (now >= accept_again_) AcceptSome();
  epoll_event events[32];
  const int count = epoll_wait(epoll_.get(), events, 32, 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;
    if (id == 0) {
      AcceptSome();
    } else if ((id & kCqTag) != 0) {
      host_.ServePairs(id & ~kCqTag);
    } else if (TcpWireConnection* connection = Find(id); connection != nullptr) {
      OnReady(*connection);
    }
  }
  if (now >= next_) Expire();
  over_.clear();
  return count > 0;
}

void TcpWire::TakeRequests() {
  std::vector<ConnectRequest> requests;
  std::vector<ConnectRequest> forgotten;
  {
    std::lock_guard<std::mutex> lock(requests_mutex_);
    requests.swap(requests_);
    forgotten.swap(forgotten_);
  }
  for (const ConnectRequest& request : requests) StartRequest(request);
  for (const ConnectRequest& request : forgotten) ForgetRequest(request);
}

void TcpWire::AcceptSome() {
  accept_again_ = kNever;
  for (size_t i = 0; i < kAcceptsAtOnce; ++i) {
    absl::StatusOr<AcceptedSocket> socket =
        AcceptSocket(listener_.socket.get(), "accepting another soft device");
    if (absl::IsUnavailable(socket.status())) break;
    if (absl::IsCancelled(socket.status())) continue;
    if (!socket.ok()) {
      accept_again_ = SaturatingAdd(now_, kAcceptDelay);
      Until(accept_again_);
      VERBENA_LOG_THROTTLED(logs_.ended, kWarning, now_,
                            fmt::format("{} keeps devices waiting that connect to it: {}; if "
                                        "descriptors are out, raise RLIMIT_NOFILE",
                                        state_.name(), socket.status().ToString()),
                            {{"device", state_.name()}});
      break;
    }
    const std::optional<TcpSource> source = TcpSource::Of(socket->fd.get());
    if (!source.has_value()) continue;
    MakeRoomForSilent(source->address);
    TcpWireConnection& connection = Add(std::move(socket->fd));
    connection.source = *source;
    connection.deadline = SaturatingAdd(now_, kGreetingPatience);
    Until(connection.deadline);
    silent_.Add(connection.id, source->address);
    if (absl::Status status = BeginWatching(connection, EPOLLIN); !status.ok()) {
      End(connection, status);
    }
  }
  ChangeWatch(listener_.socket.get(), accept_again_ == kNever ? uint32_t{EPOLLIN} : 0, 0);
}

void TcpWire::MakeRoomForSilent(const IpAddress& newcomer) {
  if (silent_.size() < MaxSilent()) return;
  silent_.Forget([&](uint64_t id) {
    const TcpWireConnection* one = Find(id);
    return one == nullptr || one->phase != Phase::kGreeting;
  });
  if (silent_.size() < MaxSilent()) return;
  End(*Find(silent_.TakeOldestOfMost(newcomer)),
      absl::ResourceExhaustedError("too many that say nothing"));
}

TcpWireConnection& TcpWire::Add(UniqueFd socket) {
  auto connection = std::make_unique<TcpWireConnection>();
  connection->id = next_id_++;
  connection->socket = std::move(socket);
  TcpWireConnection& added = *connection;
  connections_.emplace(added.id, std::move(connection));
  return added;
}

TcpWireConnection* TcpWire::Find(uint64_t id) {
  auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

absl::Status TcpWire::BeginWatching(TcpWireConnection& connection, uint32_t events) {
  connection.watches_writable = (events & EPOLLOUT) != 0;
  epoll_event event{.events = events, .data = {.u64 = connection.id}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.socket.get(), &event) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, "epoll_ctl(ADD), which fs.epoll.max_user_watches bounds");
}

void TcpWire::Watch(TcpWireConnection& connection, bool writable) {
  if (connection.over) return;
  connection.watches_writable = writable;
  const uint32_t out = writable ? uint32_t{EPOLLOUT} : 0;
  ChangeWatch(connection.socket.get(), EPOLLIN | out, connection.id);
}

void TcpWire::ChangeWatch(int fd, uint32_t events, uint64_t id) {
  epoll_event event{.events = events, .data = {.u64 = id}};
  const int failed = epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  VERBENA_CHECK(failed == 0) << "descriptor " << fd << ", errno " << errno;
}

void TcpWire::OnReady(TcpWireConnection& connection) {
  absl::Status status =
      connection.phase == Phase::kDialing ? Dialed(connection) : Flush(connection);
  if (status.ok()) status = Read(connection);
  if (!status.ok() && !absl::IsUnavailable(status)) End(connection, status);
}

absl::Status TcpWire::Dialed(TcpWireConnection& connection) {
  if (const int error = ConnectResult(connection.socket.get()); error != 0) {
    // Not UNAVAILABLE, which means that nothing waits.
    return absl::AbortedError(ErrnoStatus(error, "connecting to a soft device").message());
  }
  TcpSession* session = FindSession(connection.address);
  if (session == nullptr) return absl::AbortedError("nobody wants it any more");
  connection.phase = Phase::kGreeting;
  return Send(connection, Encode(TcpGreeting{.kind = connection.kind,
                                             .sender = address(),
                                             .session = connection.secret,
                                             .sender_cq = connection.cqs.ours,
                                             .receiver_cq = connection.cqs.theirs,
                                             .geometry = TcpLaneGeometryOf(state_.options())}));
}

absl::Status TcpWire::Read(TcpWireConnection& connection) {
  // Epoll names the connection again if messages are left.
  size_t messages = 0;
  while (!connection.over && messages < kMessagesAtOnce) {
    // No byte more than that: what follows the greeting of a lane connection is for its LanePair.
    const size_t wanted =
        connection.phase == Phase::kControl ? TcpControl::kBytes : TcpGreeting::kBytes;
    const ssize_t bytes =
        recv(connection.socket.get(), connection.incoming.data() + connection.incoming_bytes,
             wanted - connection.incoming_bytes, MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
    if (bytes < 0) {
      return absl::AbortedError(ErrnoStatus(errno, "reading from a soft device").message());
    }
    if (bytes == 0) return absl::AbortedError("the other side closed the connection");
    connection.incoming_bytes += static_cast<size_t>(bytes);
    if (connection.incoming_bytes != wanted) continue;
    connection.incoming_bytes = 0;
    ++messages;
    const std::span<const std::byte> all(connection.incoming);
    if (connection.phase == Phase::kControl) {
      VERBENA_ASSIGN_OR_RETURN(TcpControl message, ParseControl(all.first<TcpControl::kBytes>()));
      VERBENA_RETURN_IF_ERROR(Handle(connection, message));
      continue;
    }
    absl::StatusOr<TcpGreeting> greeting = ParseGreeting(all.first<TcpGreeting::kBytes>());
    if (absl::IsUnimplemented(greeting.status()) && !connection.dialed) {
      std::ignore = Refuse(connection, TcpGreeting::Kind::kControl, TcpGreeting::Verdict::kVersion);
    }
    VERBENA_RETURN_IF_ERROR(greeting.status());
    VERBENA_RETURN_IF_ERROR(connection.dialed ? OnAnswer(connection, *greeting)
                                              : OnGreeting(connection, *greeting));
  }
  return absl::OkStatus();
}

absl::Status TcpWire::Send(TcpWireConnection& connection, std::span<const std::byte> bytes) {
  if (connection.outgoing.size() + bytes.size() > kMaxOutgoing) {
    return absl::ResourceExhaustedError("a soft device reads none of its messages");
  }
  connection.outgoing.insert(connection.outgoing.end(), bytes.begin(), bytes.end());
  return Flush(connection);
}

absl::Status TcpWire::Flush(TcpWireConnection& connection) {
  size_t sent = 0;
  while (sent != connection.outgoing.size()) {
    const ssize_t bytes = send(connection.socket.get(), connection.outgoing.data() + sent,
                               connection.outgoing.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes >= 0) {
      sent += static_cast<size_t>(bytes);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return absl::AbortedError(ErrnoStatus(errno, "sending to a soft device").message());
    }
  }
  connection.outgoing.erase(connection.outgoing.begin(),
                            connection.outgoing.begin() + static_cast<std::ptrdiff_t>(sent));
  Watch(connection, !connection.outgoing.empty());
  return absl::OkStatus();
}

absl::Status TcpWire::OnGreeting(TcpWireConnection& connection, const TcpGreeting& greeting) {
  if (greeting.verdict != TcpGreeting::Verdict::kAccepted) {
    return absl::InvalidArgumentError("whoever dials has no verdict to give");
  }
  if (greeting.sender == address()) {
    return absl::InvalidArgumentError("it has our own address");
  }
  return greeting.kind == TcpGreeting::Kind::kControl ? AcceptControl(connection, greeting)
                                                      : AcceptLanes(connection, greeting);
}

// The other side has answered our greeting.
absl::Status TcpWire::OnAnswer(TcpWireConnection& connection, const TcpGreeting& greeting) {
  TcpSession* session = FindSession(connection.address);
  if (session == nullptr) return absl::AbortedError("nobody wants it any more");
  if (connection.probe) return OnProbed(*session, connection, greeting);
  if (greeting.verdict == TcpGreeting::Verdict::kDuplicate &&
      connection.kind == TcpGreeting::Kind::kControl && session->control == 0 &&
      !session->waiting.empty()) {
    // The peer's own dial goes first: it is on its way.
    session->dialing = 0;
    session->deadline = SaturatingAdd(now_, kGreetingPatience);
    Until(session->deadline);
    return absl::AbortedError("the peer dials, too");
  }
  if (greeting.verdict == TcpGreeting::Verdict::kShare ||
      greeting.verdict == TcpGreeting::Verdict::kAddress) {
    VERBENA_LOG_THROTTLED(logs_.refused, kWarning, now_,
                          fmt::format("{} is refused by {}: {}", state_.name(),
                                      AddressText(connection.address), TextOf(greeting.verdict)),
                          {{"device", state_.name()}, {"peer", AddressText(connection.address)}});
  }
  if (greeting.verdict != TcpGreeting::Verdict::kAccepted) {
    return absl::AbortedError(fmt::format("the peer refuses: {}", TextOf(greeting.verdict)));
  }
  if (greeting.kind != connection.kind || greeting.sender != connection.address) {
    return absl::InvalidArgumentError(fmt::format(
        "{} answers under {}", AddressText(greeting.sender), AddressText(connection.address)));
  }
  if (connection.kind == TcpGreeting::Kind::kControl) {
    session->dialing = 0;
    session->dialed = true;
    return OpenSession(*session, connection, greeting.session);
  }
  return OpenDialedLanes(*session, connection, greeting.geometry);
}

absl::Status TcpWire::Refuse(TcpWireConnection& connection, TcpGreeting::Kind kind,
                             TcpGreeting::Verdict verdict) {
  VERBENA_RETURN_IF_ERROR(
      Send(connection, Encode(TcpGreeting{.kind = kind, .verdict = verdict, .sender = address()})));
  // The greeting was read in full, so closing the socket resets nothing that was sent.
  return absl::AbortedError(fmt::format("it is refused: {}", TextOf(verdict)));
}

UniqueFd TcpWire::Release(TcpWireConnection& connection) {
  connection.over = true;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  UniqueFd socket = std::move(connection.socket);
  auto found = connections_.find(connection.id);
  over_.push_back(std::move(found->second));
  connections_.erase(found);
  return socket;
}

void TcpWire::End(TcpWireConnection& connection, const absl::Status& reason) {
  if (connection.over) return;
  const UniqueFd closing = Release(connection);
  // A child of this process may hold a copy of the descriptor: the other side is to see the end.
  shutdown(closing.get(), SHUT_RDWR);
  if (connection.phase == Phase::kControl) {
    EndSession(connection.address, reason);
    return;
  }
  VERBENA_LOG_THROTTLED(
      logs_.ended, kInfo, now_,
      fmt::format("{}: a TCP connection {} ended: {}", state_.name(),
                  connection.dialed ? "to " + AddressText(connection.address)
                                    : "from " + FormatIp(connection.source.address),
                  reason.ToString()),
      {{"device", state_.name()}});
  if (connection.dialed) OnDialFailed(connection);
}

void TcpWire::Until(TimePoint deadline) { next_ = std::min(next_, deadline); }

void TcpWire::Expire() {
  next_ = accept_again_;
  std::vector<uint64_t> late;
  for (const auto& [id, connection] : connections_) {
    if (connection->phase == Phase::kControl) continue;
    if (connection->deadline <= now_) {
      late.push_back(id);
    } else {
      Until(connection->deadline);
    }
  }
  for (uint64_t id : late) {
    if (TcpWireConnection* connection = Find(id); connection != nullptr) {
      End(*connection, absl::DeadlineExceededError("it did not greet in time"));
    }
  }
  std::vector<DeviceAddress> silent;
  std::vector<std::pair<DeviceAddress, CqPair>> failed;
  std::vector<DeviceAddress> unanswered;
  for (auto& [address, session] : sessions_) {
    if (session->control == 0 && session->deadline <= now_) silent.push_back(address);
    if (session->control == 0) Until(session->deadline);
    for (auto& [cqs, lanes] : session->lanes) {
      if (lanes.pending && lanes.deadline <= now_) failed.emplace_back(address, cqs);
      if (lanes.pending) Until(lanes.deadline);
    }
    if (session->questions.next() <= now_) {
      unanswered.push_back(address);
    } else {
      Until(session->questions.next());
    }
  }
  for (const DeviceAddress& address : silent) {
    EndSession(address, absl::DeadlineExceededError("it was not reached, and did not dial"));
  }
  for (const auto& [address, cqs] : failed) {
    if (TcpSession* session = FindSession(address); session != nullptr) FailLanes(*session, cqs);
  }
  for (const DeviceAddress& address : unanswered) FailOverdue(address);
}

// TcpWire: what it agrees with its peers.

TcpSession* TcpWire::FindSession(const DeviceAddress& address) {
  auto found = sessions_.find(address);
  return found == sessions_.end() ? nullptr : found->second.get();
}

TcpSession& TcpWire::AddSession(const DeviceAddress& address, TcpShares::Share share) {
  auto made = std::make_unique<TcpSession>();
  made->address = address;
  made->share = std::move(share);
  made->our_secret = NewTcpSecret();
  return *sessions_.emplace(address, std::move(made)).first->second;
}

void TcpWire::StartRequest(const ConnectRequest& request) {
  // The queue pair may be gone already.
  if (!host_.SendCqOf(request.qpn).has_value()) return;
  TcpSession* session = FindSession(request.address);
  if (session == nullptr) {
    absl::StatusOr<TcpShares::Share> share = TakePeer(request.address.ip());
    if (!share.ok()) {
      host_.FinishConnect(request, nullptr, 0);
      return;
    }
    session = &AddSession(request.address, *std::move(share));
    session->waiting.push_back(request);
    Dial(*session, TcpGreeting::Kind::kControl, {});
    return;
  }
  if (session->control == 0) {
    session->waiting.push_back(request);
    return;
  }
  if (absl::Status status = Resolve(*session, request); !status.ok()) {
    EndSession(request.address, status);
  }
}

void TcpWire::ForgetRequest(const ConnectRequest& request) {
  TcpSession* session = FindSession(request.address);
  if (session == nullptr) return;
  if (session->control != 0) {
    session->questions.Forget(request);
    absl::Status status = session->questions.CheckUnanswered();
    if (!status.ok()) EndSession(request.address, status);
    return;
  }
  std::erase_if(session->waiting, [&](const ConnectRequest& one) {
    return one.qpn == request.qpn && one.remote_qpn == request.remote_qpn;
  });
  if (!session->waiting.empty()) return;
  // A peer that has our greeting may take the session for its own.
  const TcpWireConnection* dial = Find(session->dialing);
  if (dial != nullptr && dial->phase != Phase::kDialing) {
    KeepUnwanted(*dial);
    return;
  }
  EndSession(request.address, NobodyWaits());
}

void TcpWire::KeepUnwanted(const TcpWireConnection& dial) {
  unwanted_.Forget([&](uint64_t id) {
    const TcpWireConnection* one = Find(id);
    if (one == nullptr || one == &dial || one->phase != Phase::kGreeting) return true;
    const TcpSession* session = FindSession(one->address);
    return session == nullptr || !session->waiting.empty();
  });
  if (unwanted_.size() >= kMaxUnwanted) {
    const uint64_t oldest = unwanted_.TakeOldestOfMost(dial.address.ip());
    const DeviceAddress silent = Find(oldest)->address;
    EndSession(silent, NobodyWaits());
  }
  unwanted_.Add(dial.id, dial.address.ip());
}

void TcpWire::Dial(TcpSession& session, TcpGreeting::Kind kind, CqPair cqs) {
  // A session has the socket of its control connection. Those that look for another owner of its
  // name count as lanes do.
  const bool probe = kind == TcpGreeting::Kind::kControl && session.control != 0;
  TcpShares::Share share;
  if (kind == TcpGreeting::Kind::kLanes || probe) {
    absl::StatusOr<TcpShares::Share> taken = TakeSocket(session.address.ip());
    if (!taken.ok()) {
      if (!probe) FailLanes(session, cqs);
      return;
    }
    share = *std::move(taken);
  }
  absl::StatusOr<UniqueFd> socket =
      DialTcp(session.address, dial_from_own_address_ ? &address() : nullptr);
  absl::Status dialed = socket.status();
  TcpWireConnection& connection = Add(dialed.ok() ? *std::move(socket) : UniqueFd());
  connection.phase = Phase::kDialing;
  connection.kind = kind;
  connection.dialed = true;
  connection.probe = probe;
  connection.secret = kind == TcpGreeting::Kind::kLanes ? session.their_secret
                      : probe                           ? NewTcpSecret()
                                                        : session.our_secret;
  connection.address = session.address;
  connection.cqs = cqs;
  connection.share = std::move(share);
  connection.deadline = SaturatingAdd(now_, kDialPatience);
  if (kind == TcpGreeting::Kind::kControl) session.dialing = connection.id;
  if (dialed.ok()) dialed = BeginWatching(connection, EPOLLIN | EPOLLOUT);
  if (!dialed.ok()) {
    End(connection, dialed);
    return;
  }
  Until(connection.deadline);
}

void TcpWire::OnDialFailed(TcpWireConnection& connection) {
  TcpSession* session = FindSession(connection.address);
  if (session == nullptr) return;
  if (connection.kind == TcpGreeting::Kind::kLanes) {
    FailLanes(*session, connection.cqs);
  } else if (session->dialing == connection.id) {
    // A firewall may forbid our direction alone: the peer, which wants to reach us too, may dial.
    session->dialing = 0;
    if (connection.probe) return;
    if (session->waiting.empty()) {
      EndSession(connection.address, NobodyWaits());
      return;
    }
    session->deadline = SaturatingAdd(now_, kPeersTurn);
    Until(session->deadline);
  }
}

absl::Status TcpWire::AcceptControl(TcpWireConnection& connection, const TcpGreeting& greeting) {
  if (!MayHaveThatName(connection, greeting)) {
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kAddress);
  }
  TcpSession* session = FindSession(greeting.sender);
  if (session == nullptr) {
    if (sessions_.size() >= kMaxSessions) {
      return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kBusy);
    }
    absl::StatusOr<TcpShares::Share> share = TakePeer(connection.source.address);
    if (!share.ok()) return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kShare);
    session = &AddSession(greeting.sender, *std::move(share));
  } else if (session->control != 0) {
    // A stranger that takes a peer's name must not end its session.
    Probe(*session);
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kDuplicate);
  } else if (TcpWireConnection* ours = Find(session->dialing); ours != nullptr) {
    // Both dial. Of two that have greeted, the one that the lower address dialed stands. A dial
    // that is not connected yet may never be: whoever came through goes first.
    if (ours->phase == Phase::kGreeting && address() < greeting.sender) {
      return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kDuplicate);
    }
    session->dialing = 0;
    End(*ours, absl::CancelledError("the peer dialed, too"));
  }
  session->dialed = false;
  absl::Status sent = Send(
      connection, Encode(TcpGreeting{
                      .kind = greeting.kind, .sender = address(), .session = session->our_secret}));
  if (!sent.ok()) {
    // No dial of ours is left, and no deadline: whoever waits for the session would wait for ever.
    EndSession(greeting.sender, sent);
    return sent;
  }
  return OpenSession(*session, connection, greeting.session);
}

absl::Status TcpWire::OpenSession(TcpSession& session, TcpWireConnection& connection,
                                  uint64_t their_secret) {
  connection.phase = Phase::kControl;
  connection.address = session.address;
  connection.deadline = kNever;
  session.control = connection.id;
  session.deadline = kNever;
  session.probe_again = SaturatingAdd(now_, kProbePause);
  session.their_secret = their_secret;
  // Probes in the second half of the time, if nothing was heard in the first.
  const auto silence = static_cast<int>(state_.options().tcp->silence_limit.count());
  DetectDeadHost(connection.socket.get(),
                 {.idle_seconds = std::max(1, silence / 2),
                  .interval_seconds = std::max(1, silence / 2 / AllowedSilence::kProbes),
                  .limit_seconds = silence});
  session.peer =
      std::make_shared<Peer>(PeerParts{.address = session.address,
                                       .controls = reinterpret_cast<CqControl*>(controls_->data()),
                                       .keep_alive = controls_});
  std::vector<ConnectRequest> waiting;
  waiting.swap(session.waiting);
  // All of them, also after an error: the end of the session tells those that it knows.
  absl::Status status;
  for (const ConnectRequest& request : waiting) {
    absl::Status resolved = Resolve(session, request);
    if (status.ok()) status = std::move(resolved);
  }
  return status;
}

absl::Status TcpWire::Say(TcpSession& session, const TcpControl& message) {
  TcpWireConnection* connection = Find(session.control);
  if (connection == nullptr) return absl::AbortedError("the control connection is gone");
  return Send(*connection, Encode(message));
}

absl::Status TcpWire::Resolve(TcpSession& session, const ConnectRequest& request) {
  const uint64_t id = next_id_++;
  session.questions.Ask(id, request, now_);
  Until(session.questions.next());
  return Say(session,
             {.kind = TcpControl::Kind::kResolve, .qpn = request.remote_qpn, .request = id});
}

absl::Status TcpWire::Handle(TcpWireConnection& connection, const TcpControl& message) {
  TcpSession* session = FindSession(connection.address);
  if (session == nullptr) return absl::AbortedError("its session is over");
  const CqPair cqs{.ours = message.receiver_cq, .theirs = message.sender_cq};
  switch (message.kind) {
    case TcpControl::Kind::kResolve: {
      const std::optional<uint64_t> cq = host_.ReceiveCqOf(message.qpn);
      return Say(*session, {.kind = TcpControl::Kind::kResolved,
                            .found = cq.has_value(),
                            .request = message.request,
                            .receiver_cq = cq.value_or(0)});
    }
    case TcpControl::Kind::kResolved:
      return HandleResolved(*session, message);
    case TcpControl::Kind::kDial:
      return HandleDial(*session, message);
    case TcpControl::Kind::kDialFailed:
      if (session->dialed) {
        return absl::InvalidArgumentError("it could not dial what we dial");
      }
      FailLanes(*session, cqs);
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a control message of unknown kind");
}

absl::Status TcpWire::HandleResolved(TcpSession& session, const TcpControl& message) {
  VERBENA_ASSIGN_OR_RETURN(std::optional<ConnectRequest> request,
                           session.questions.Answered(message.request));
  if (!request.has_value()) return absl::OkStatus();
  const std::optional<uint64_t> ours = host_.SendCqOf(request->qpn);
  if (!message.found || !ours.has_value()) {
    host_.FinishConnect(*request, nullptr, 0);
    return absl::OkStatus();
  }
  return WantLanes(session, *request, {.ours = *ours, .theirs = message.receiver_cq});
}

void TcpWire::FailOverdue(const DeviceAddress& address) {
  TcpSession* session = FindSession(address);
  if (session == nullptr) return;
  for (const ConnectRequest& failed : session->questions.TakeOverdue(now_)) {
    VERBENA_LOG_THROTTLED(logs_.lost, kInfo, now_,
                          fmt::format("{}: {} does not say in time how queue pair {} is reached",
                                      state_.name(), AddressText(address), failed.remote_qpn),
                          {{"device", state_.name()}, {"peer", AddressText(address)}});
    host_.FinishConnect(failed, nullptr, 0);
  }
  Until(session->questions.next());
  absl::Status status = session->questions.CheckUnanswered();
  if (!status.ok()) EndSession(address, status);
}

absl::Status TcpWire::WantLanes(TcpSession& session, const ConnectRequest& request, CqPair cqs) {
  session.PruneLanes();
  if (session.lanes.size() >= kMaxCqPairs) {
    host_.FinishConnect(request, nullptr, 0);
    return absl::OkStatus();
  }
  TcpSession::Lanes& lanes = session.lanes[cqs];
  if (!lanes.pending && lanes.up()) {
    host_.FinishConnect(request, session.peer, cqs.theirs);
    return absl::OkStatus();
  }
  lanes.waiting.push_back(request);
  if (std::exchange(lanes.pending, true)) return absl::OkStatus();
  if (session.dialed) {
    Dial(session, TcpGreeting::Kind::kLanes, cqs);
    return absl::OkStatus();
  }
  lanes.deadline = SaturatingAdd(now_, kAskPatience);
  Until(lanes.deadline);
  return Say(session,
             {.kind = TcpControl::Kind::kDial, .sender_cq = cqs.ours, .receiver_cq = cqs.theirs});
}

absl::Status TcpWire::HandleDial(TcpSession& session, const TcpControl& message) {
  if (!session.dialed) return absl::InvalidArgumentError("it asks us to dial, and dialed itself");
  const CqPair cqs{.ours = message.receiver_cq, .theirs = message.sender_cq};
  session.PruneLanes();
  auto found = session.lanes.find(cqs);
  // On its way, or there: its greeting tells the peer.
  if (found != session.lanes.end()) {
    found->second.asked_by_peer = true;
    return absl::OkStatus();
  }
  if (session.lanes.size() >= kMaxCqPairs || !host_.HasCq(cqs.ours)) {
    return Say(
        session,
        {.kind = TcpControl::Kind::kDialFailed, .sender_cq = cqs.ours, .receiver_cq = cqs.theirs});
  }
  TcpSession::Lanes& lanes = session.lanes[cqs];
  lanes.pending = true;
  lanes.asked_by_peer = true;
  Dial(session, TcpGreeting::Kind::kLanes, cqs);
  return absl::OkStatus();
}

absl::Status TcpWire::AcceptLanes(TcpWireConnection& connection, const TcpGreeting& greeting) {
  TcpSession* session = FindSession(greeting.sender);
  if (session == nullptr || session->control == 0 || session->dialed ||
      session->our_secret != greeting.session) {
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kStranger);
  }
  const CqPair cqs{.ours = greeting.receiver_cq, .theirs = greeting.sender_cq};
  session->PruneLanes();
  if (auto found = session->lanes.find(cqs); found != session->lanes.end() && found->second.up()) {
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kDuplicate);
  }
  if (!host_.HasCq(cqs.ours) || session->lanes.size() >= kMaxCqPairs) {
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kNoCq);
  }
  absl::StatusOr<TcpShares::Share> share =
      TakeLanes(connection.source.address, cqs.ours, greeting.geometry);
  if (!share.ok()) return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kShare);
  VERBENA_RETURN_IF_ERROR(
      Send(connection, Encode(TcpGreeting{.kind = greeting.kind,
                                          .sender = address(),
                                          .session = session->their_secret,
                                          .sender_cq = cqs.ours,
                                          .receiver_cq = cqs.theirs,
                                          .geometry = TcpLaneGeometryOf(state_.options())})));
  if (!connection.outgoing.empty()) return absl::AbortedError("it takes not even a greeting");
  return OpenLanes(*session, cqs, Release(connection), greeting.geometry, *share);
}

absl::Status TcpWire::OpenDialedLanes(TcpSession& session, TcpWireConnection& connection,
                                      const LaneGeometry& theirs) {
  const CqPair cqs = connection.cqs;
  UniqueFd socket = Release(connection);
  // The next one has the socket, too.
  connection.share.reset();
  absl::StatusOr<TcpShares::Share> share = TakeLanes(session.address.ip(), cqs.ours, theirs);
  if (share.ok()) {
    return OpenLanes(session, cqs, std::move(socket), theirs, *share);
  }
  shutdown(socket.get(), SHUT_RDWR);
  FailLanes(session, cqs);
  return absl::OkStatus();
}

absl::Status TcpWire::OpenLanes(TcpSession& session, CqPair cqs, UniqueFd socket,
                                const LaneGeometry& theirs, const TcpShares::Share& share) {
  session.had_lanes = true;
  absl::StatusOr<std::shared_ptr<LanePair>> pair = host_.OpenLanePair(
      cqs.ours, cqs.theirs, session.peer, std::move(socket), theirs, share, fd());
  if (!pair.ok()) {
    VERBENA_LOG_THROTTLED(logs_.refused, kWarning, now_,
                          fmt::format("{} cannot exchange messages with {}: {}", state_.name(),
                                      AddressText(session.address), pair.status().ToString()),
                          {{"device", state_.name()}, {"peer", AddressText(session.address)}});
    FailLanes(session, cqs);
    return absl::OkStatus();
  }
  TcpSession::Lanes& lanes = session.lanes[cqs];
  lanes.pair = *pair;
  lanes.pending = false;
  lanes.deadline = kNever;
  std::vector<ConnectRequest> waiting;
  waiting.swap(lanes.waiting);
  for (const ConnectRequest& request : waiting) {
    host_.FinishConnect(request, session.peer, cqs.theirs);
  }
  return absl::OkStatus();
}

void TcpWire::FailLanes(TcpSession& session, CqPair cqs) {
  auto found = session.lanes.find(cqs);
  if (found == session.lanes.end() || !found->second.pending) return;
  const TcpSession::Lanes failed = std::move(found->second);
  session.lanes.erase(found);
  for (const ConnectRequest& request : failed.waiting) host_.FinishConnect(request, nullptr, 0);
  if (!failed.asked_by_peer) return;
  // A control connection that fails here is read again soon, and ends then.
  std::ignore = Say(
      session,
      {.kind = TcpControl::Kind::kDialFailed, .sender_cq = cqs.ours, .receiver_cq = cqs.theirs});
}

void TcpWire::EndSession(const DeviceAddress& address, const absl::Status& reason) {
  auto found = sessions_.find(address);
  if (found == sessions_.end()) return;
  const std::unique_ptr<TcpSession> session = std::move(found->second);
  sessions_.erase(found);
  VERBENA_LOG_THROTTLED(logs_.lost, kInfo, now_,
                        fmt::format("{}: the soft device {} is lost: {}", state_.name(),
                                    AddressText(address), reason.ToString()),
                        {{"device", state_.name()}, {"peer", AddressText(address)}});
  std::vector<uint64_t> dials;
  for (const auto& [id, connection] : connections_) {
    if (connection->phase != Phase::kGreeting || connection->dialed) {
      if (connection->address == address) dials.push_back(id);
    }
  }
  for (uint64_t id : dials) {
    if (TcpWireConnection* connection = Find(id); connection != nullptr) End(*connection, reason);
  }
  // Otherwise no CQ knows the peer. A stranger that comes and goes costs executors nothing.
  if (session->had_lanes) host_.LosePeer(*session->peer);
  for (const ConnectRequest& request : session->waiting) host_.FinishConnect(request, nullptr, 0);
  for (const ConnectRequest& request : session->questions.TakeAll()) {
    host_.FinishConnect(request, nullptr, 0);
  }
  for (const auto& [_, lanes] : session->lanes) {
    for (const ConnectRequest& request : lanes.waiting) host_.FinishConnect(request, nullptr, 0);
  }
}

// TcpWire: what a peer may claim: its name, and its share of what the device has.

uint64_t TcpWire::NewTcpSecret() {
  uint64_t secret = 0;
  if (getrandom(&secret, sizeof(secret), 0) != static_cast<ssize_t>(sizeof(secret))) {
    secret = uint64_t{std::random_device()()} << 32 | std::random_device()();
  }
  return secret;
}

absl::StatusOr<TcpShares::Share> TcpWire::TakeShare(
    const IpAddress& source, std::initializer_list<TcpShares::Wanted> wanted) {
  absl::StatusOr<TcpShares::Share> share = shares_.Take(source, wanted);
  if (!share.ok() && now_ >= sweep_again_) {
    // Lanes that are over hold their memory until somebody looks.
    sweep_again_ = SaturatingAdd(now_, kSweepPause);
    host_.SweepLanes();
    share = shares_.Take(source, wanted);
  }
  if (!share.ok()) {
    VERBENA_LOG_THROTTLED(logs_.refused, kWarning, now_,
                          fmt::format("{} keeps a share of what it has for other hosts: {}",
                                      state_.name(), std::string(share.status().message())),
                          {{"device", state_.name()}});
  }
  return share;
}

absl::StatusOr<TcpShares::Share> TcpWire::TakePeer(const IpAddress& source) {
  return TakeShare(source, {{.kind = TcpShares::Kind::kPeers, .limit = kMaxSessions},
                            {.kind = TcpShares::Kind::kSockets, .limit = MaxSockets()}});
}

absl::StatusOr<TcpShares::Share> TcpWire::TakeSocket(const IpAddress& source) {
  return TakeShare(source, {{.kind = TcpShares::Kind::kSockets, .limit = MaxSockets()}});
}

absl::StatusOr<TcpShares::Share> TcpWire::TakeLanes(const IpAddress& source, uint64_t cq,
                                                    const LaneGeometry& theirs) {
  const uint64_t bytes = BytesOf(TcpLaneGeometryOf(state_.options())) + BytesOf(theirs);
  return TakeShare(source, {{.kind = TcpShares::Kind::kSockets, .limit = MaxSockets()},
                            {.kind = TcpShares::Kind::kLanes, .limit = kMaxLanesOfCq, .cq = cq},
                            {.kind = TcpShares::Kind::kLaneBytes,
                             .amount = bytes,
                             .limit = state_.options().tcp->lane_bytes}});
}

bool TcpWire::MayHaveThatName(const TcpWireConnection& connection, const TcpGreeting& greeting) {
  if (state_.options().tcp->any_source.value_or(false) ||
      connection.source.MayHave(greeting.sender.ip())) {
    return true;
  }
  VERBENA_LOG_THROTTLED(logs_.refused, kWarning, now_,
                        fmt::format("{} refuses a device at {} that claims the GID of {}; "
                                    "VERBENA_SOFT_ANY_SOURCE=1 allows it",
                                    state_.name(), FormatIp(connection.source.address),
                                    FormatIp(greeting.sender.ip())),
                        {{"device", state_.name()}, {"peer", FormatIp(connection.source.address)}});
  return false;
}

// Somebody else says that it has the name of a peer. Whoever listens under that name knows.
void TcpWire::Probe(TcpSession& session) {
  if (session.dialing != 0 || now_ < session.probe_again) return;
  session.probe_again = SaturatingAdd(now_, kProbePause);
  Dial(session, TcpGreeting::Kind::kControl, {});
}

absl::Status TcpWire::OnProbed(TcpSession& session, TcpWireConnection& connection,
                               const TcpGreeting& greeting) {
  // A peer that has the session refuses a second one.
  if (greeting.verdict != TcpGreeting::Verdict::kAccepted) {
    return absl::AbortedError("the peer stands by its session");
  }
  if (greeting.kind != TcpGreeting::Kind::kControl || greeting.sender != session.address) {
    return absl::InvalidArgumentError(fmt::format(
        "{} answers under {}", AddressText(greeting.sender), AddressText(session.address)));
  }
  const DeviceAddress address = session.address;
  // The session that ends does not take this connection along.
  session.dialing = 0;
  connection.address = {};
  EndSession(address, absl::AbortedError("another device listens under its name"));
  connection.address = address;
  connection.share.reset();
  VERBENA_ASSIGN_OR_RETURN(TcpShares::Share share, TakePeer(address.ip()));
  TcpSession& owners = AddSession(address, std::move(share));
  owners.our_secret = connection.secret;
  owners.dialed = true;
  return OpenSession(owners, connection, greeting.session);
}

}  // namespace verbena::internal::soft
