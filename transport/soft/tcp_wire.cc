// TcpWire: sockets and greetings.

#include "verbena/transport/soft/tcp_wire.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/rnic.h"

namespace verbena::internal::soft {
namespace {

// From accepting, or from dialing, until the other side's greeting. (start)
constexpr Duration kGreetingPatience = std::chrono::seconds(5);
// Without descriptors: long enough not to spin, short for who connects.
constexpr Duration kAcceptDelay = std::chrono::milliseconds(100);
constexpr size_t kAcceptsAtOnce = 32;
// Greetings and control messages of one connection in one turn.
constexpr size_t kMessagesAtOnce = 64;
// Control messages that a peer does not read, beyond what its socket holds: over 1,600. (start)
constexpr size_t kMaxOutgoing = 64u << 10;

size_t MaxSilent() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return TcpWire::kMaxSilent;
  return std::clamp<size_t>(limit.rlim_cur / 8, 1, TcpWire::kMaxSilent);
}

}  // namespace

TcpWire::TcpWire(Rnic& rnic, TcpWireListener listener, bool dial_from_own_address)
    : rnic_(rnic),
      listener_(std::move(listener)),
      dial_from_own_address_(dial_from_own_address),
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
      rnic_.ServePairs(id & ~kCqTag);
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
    absl::StatusOr<UniqueFd> socket = AcceptTcp(listener_.socket.get());
    if (absl::IsUnavailable(socket.status())) break;
    if (absl::IsCancelled(socket.status())) continue;
    if (!socket.ok()) {
      accept_again_ = SaturatingAdd(now_, kAcceptDelay);
      Until(accept_again_);
      logs_.ended.Write(LogLevel::kWarning, now_,
                        fmt::format("{} keeps devices waiting that connect to it: {}; raise "
                                    "RLIMIT_NOFILE",
                                    rnic_.name(), socket.status().ToString()));
      break;
    }
    const absl::StatusOr<TcpSource> source = SourceOf(socket->get());
    if (!source.ok()) continue;
    MakeRoomForSilent(source->address);
    TcpWireConnection& connection = Add(*std::move(socket));
    connection.source = *source;
    connection.deadline = SaturatingAdd(now_, kGreetingPatience);
    Until(connection.deadline);
    silent_.Add(connection.id, source->address);
    Watch(connection, false);
  }
  epoll_event event{.events = accept_again_ == kNever ? uint32_t{EPOLLIN} : 0, .data = {.u64 = 0}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.socket.get(), &event);
}

void TcpWire::MakeRoomForSilent(const ibv_gid& newcomer) {
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
  epoll_event event{.events = 0, .data = {.u64 = connection->id}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event);
  TcpWireConnection& added = *connection;
  connections_.emplace(added.id, std::move(connection));
  return added;
}

TcpWireConnection* TcpWire::Find(uint64_t id) {
  auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void TcpWire::Watch(TcpWireConnection& connection, bool writable) {
  if (connection.over) return;
  connection.watches_writable = writable;
  const uint32_t out = writable ? uint32_t{EPOLLOUT} : 0;
  epoll_event event{.events = EPOLLIN | out, .data = {.u64 = connection.id}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

void TcpWire::OnReady(TcpWireConnection& connection) {
  absl::Status status =
      connection.phase == Phase::kDialing ? Dialed(connection) : Flush(connection);
  if (status.ok()) status = Read(connection);
  if (!status.ok() && !absl::IsUnavailable(status)) End(connection, status);
}

absl::Status TcpWire::Dialed(TcpWireConnection& connection) {
  absl::Status result = DialResult(connection.socket.get());
  // Not UNAVAILABLE, which means that nothing waits.
  if (!result.ok()) return absl::AbortedError(result.message());
  TcpSession* session = FindSession(connection.address);
  if (session == nullptr) return absl::AbortedError("nobody wants it any more");
  connection.phase = Phase::kGreeting;
  return Send(connection, Encode(TcpGreeting{.kind = connection.kind,
                                             .sender = address(),
                                             .session = connection.secret,
                                             .sender_cq = connection.cqs.ours,
                                             .receiver_cq = connection.cqs.theirs,
                                             .geometry = rnic_.tcp_lane_geometry()}));
}

absl::Status TcpWire::Read(TcpWireConnection& connection) {
  // A peer that never stops talking gets its turns as others do: epoll names it again.
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
      connection.kind == TcpGreeting::Kind::kControl && session->control == 0) {
    // The peer's own dial goes first: it is on its way.
    session->dialing = 0;
    session->deadline = SaturatingAdd(now_, kGreetingPatience);
    Until(session->deadline);
    return absl::AbortedError("the peer dials, too");
  }
  if (greeting.verdict == TcpGreeting::Verdict::kShare ||
      greeting.verdict == TcpGreeting::Verdict::kAddress) {
    logs_.refused.Write(LogLevel::kWarning, now_,
                        fmt::format("{} is refused by {}: {}", rnic_.name(),
                                    AddressText(connection.address), TextOf(greeting.verdict)));
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
  logs_.ended.Write(LogLevel::kInfo, now_,
                    fmt::format("{}: a TCP connection {} ended: {}", rnic_.name(),
                                connection.dialed ? "to " + AddressText(connection.address)
                                                  : "from " + IpText(connection.source.address),
                                reason.ToString()));
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
  std::vector<std::pair<DeviceAddress, uint64_t>> unanswered;
  for (auto& [address, session] : sessions_) {
    if (session->control == 0 && session->deadline <= now_) silent.push_back(address);
    if (session->control == 0) Until(session->deadline);
    for (auto& [cqs, lanes] : session->lanes) {
      if (lanes.pending && lanes.deadline <= now_) failed.emplace_back(address, cqs);
      if (lanes.pending) Until(lanes.deadline);
    }
    for (const auto& [id, resolving] : session->resolving) {
      if (resolving.deadline <= now_) unanswered.emplace_back(address, id);
      if (resolving.deadline > now_) Until(resolving.deadline);
    }
  }
  for (const DeviceAddress& address : silent) {
    EndSession(address, absl::DeadlineExceededError("it was not reached, and did not dial"));
  }
  for (const auto& [address, cqs] : failed) {
    if (TcpSession* session = FindSession(address); session != nullptr) FailLanes(*session, cqs);
  }
  for (const auto& [address, id] : unanswered) FailResolve(address, id);
}

}  // namespace verbena::internal::soft
