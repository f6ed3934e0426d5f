// TcpWire: what it agrees with its peers.

#include <sys/random.h>

#include <chrono>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"
#include "verbena/transport/soft/lane_pair.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal::soft {
namespace {

constexpr Duration kDialPatience = std::chrono::seconds(5);  // (start)
// Longer than the peer's own patience, so that it is the peer who says that its dial failed.
constexpr Duration kAskPatience = std::chrono::seconds(10);
// For the peer's dial, if ours has failed. (start)
constexpr Duration kPeersTurn = std::chrono::seconds(1);
constexpr size_t kMaxSessions = 4096;
// Lane connections of one session: more than two devices make in practice, and a bound for a faulty
// peer.
constexpr size_t kMaxCqPairs = 4096;

uint64_t NewSecret() {
  uint64_t secret = 0;
  if (getrandom(&secret, sizeof(secret), 0) != static_cast<ssize_t>(sizeof(secret))) {
    secret = uint64_t{std::random_device()()} << 32 | std::random_device()();
  }
  return secret;
}

}  // namespace

TcpSession* TcpWire::FindSession(const DeviceAddress& address) {
  auto found = sessions_.find(address);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void TcpWire::StartRequest(const ConnectRequest& request) {
  TcpSession* session = FindSession(request.address);
  if (session == nullptr) {
    if (sessions_.size() >= kMaxSessions) {
      Log(LogLevel::kError, fmt::format("{} has {} peers, and connects to no other one",
                                        rnic_.name(), sessions_.size()));
      rnic_.FinishConnect(request, nullptr, 0);
      return;
    }
    auto made = std::make_unique<TcpSession>();
    session = made.get();
    session->address = request.address;
    session->our_secret = NewSecret();
    sessions_.emplace(request.address, std::move(made));
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

void TcpWire::Dial(TcpSession& session, TcpGreeting::Kind kind, CqPair cqs) {
  absl::StatusOr<UniqueFd> socket =
      DialTcp(session.address, dial_from_own_address_ ? &address() : nullptr);
  const bool failed = !socket.ok();
  TcpWireConnection& connection = Add(failed ? UniqueFd() : *std::move(socket));
  connection.phase = Phase::kDialing;
  connection.kind = kind;
  connection.dialed = true;
  connection.address = session.address;
  connection.cqs = cqs;
  connection.deadline = SaturatingAdd(now_, kDialPatience);
  if (kind == TcpGreeting::Kind::kControl) session.dialing = connection.id;
  if (failed) {
    End(connection, socket.status());
    return;
  }
  Until(connection.deadline);
  Watch(connection, true);
}

void TcpWire::OnDialFailed(TcpWireConnection& connection) {
  TcpSession* session = FindSession(connection.address);
  if (session == nullptr) return;
  if (connection.kind == TcpGreeting::Kind::kLanes) {
    FailLanes(*session, connection.cqs);
  } else if (session->dialing == connection.id) {
    // A firewall may forbid our direction alone: the peer, which wants to reach us too, may dial.
    session->dialing = 0;
    session->deadline =
        SaturatingAdd(now_, VERBENA_MUTANT(kFailedDialEndsSession) ? Duration::zero() : kPeersTurn);
    Until(session->deadline);
  }
}

absl::Status TcpWire::AcceptControl(TcpWireConnection& connection, const TcpGreeting& greeting) {
  TcpSession* session = FindSession(greeting.sender);
  if (session == nullptr) {
    if (sessions_.size() >= kMaxSessions) {
      return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kBusy);
    }
    auto made = std::make_unique<TcpSession>();
    session = made.get();
    session->address = greeting.sender;
    session->our_secret = NewSecret();
    sessions_.emplace(greeting.sender, std::move(made));
  } else if (session->control != 0 && !VERBENA_MUTANT(kPeersNameTaken)) {
    // A device that was restarted on its port waits until its former connection is found dead: a
    // stranger that takes its name must not end the sessions of others.
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
  const absl::Status sent = Send(
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
  session.their_secret = their_secret;
  DetectDeadHost(connection.socket.get(), rnic_.silence_limit_seconds());
  VERBENA_ASSIGN_OR_RETURN(session.peer, rnic_.MakeTcpPeer(session.address));
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
  session.resolving.emplace(id, request);
  return Say(session,
             {.kind = TcpControl::Kind::kResolve, .qpn = request.remote_qpn, .request = id});
}

absl::Status TcpWire::Handle(TcpWireConnection& connection, const TcpControl& message) {
  TcpSession* session = FindSession(connection.address);
  if (session == nullptr) return absl::AbortedError("its session is over");
  const CqPair cqs{.ours = message.receiver_cq, .theirs = message.sender_cq};
  switch (message.kind) {
    case TcpControl::Kind::kResolve: {
      const std::optional<uint64_t> cq = rnic_.ReceiveCqOf(message.qpn);
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
  auto found = session.resolving.find(message.request);
  if (found == session.resolving.end()) {
    return absl::InvalidArgumentError("a soft device answered what it was not asked");
  }
  const ConnectRequest request = found->second;
  session.resolving.erase(found);
  const std::optional<uint64_t> ours = rnic_.SendCqOf(request.qpn);
  if (!message.found || !ours.has_value()) {
    rnic_.FinishConnect(request, nullptr, 0);
    return absl::OkStatus();
  }
  return WantLanes(session, request, {.ours = *ours, .theirs = message.receiver_cq});
}

absl::Status TcpWire::WantLanes(TcpSession& session, const ConnectRequest& request, CqPair cqs) {
  std::erase_if(session.lanes,
                [](const auto& entry) { return !entry.second.pending && !entry.second.up(); });
  if (session.lanes.size() >= kMaxCqPairs) {
    rnic_.FinishConnect(request, nullptr, 0);
    return absl::OkStatus();
  }
  TcpSession::Lanes& lanes = session.lanes[cqs];
  if (!lanes.pending && lanes.up()) {
    rnic_.FinishConnect(request, session.peer, cqs.theirs);
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
  std::erase_if(session.lanes,
                [](const auto& entry) { return !entry.second.pending && !entry.second.up(); });
  auto found = session.lanes.find(cqs);
  // On its way, or there: its greeting tells the peer.
  if (found != session.lanes.end()) {
    found->second.asked_by_peer = true;
    return absl::OkStatus();
  }
  if (session.lanes.size() >= kMaxCqPairs || !rnic_.HasCq(cqs.ours)) {
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
      (session->our_secret != greeting.session && !VERBENA_MUTANT(kTcpSecretUnchecked))) {
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kStranger);
  }
  const CqPair cqs{.ours = greeting.receiver_cq, .theirs = greeting.sender_cq};
  std::erase_if(session->lanes,
                [](const auto& entry) { return !entry.second.pending && !entry.second.up(); });
  if (auto found = session->lanes.find(cqs); found != session->lanes.end() && found->second.up()) {
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kDuplicate);
  }
  if (!rnic_.HasCq(cqs.ours) || session->lanes.size() >= kMaxCqPairs) {
    return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kNoCq);
  }
  VERBENA_RETURN_IF_ERROR(Send(connection, Encode(TcpGreeting{.kind = greeting.kind,
                                                              .sender = address(),
                                                              .session = session->their_secret,
                                                              .sender_cq = cqs.ours,
                                                              .receiver_cq = cqs.theirs,
                                                              .geometry = rnic_.lane_geometry()})));
  if (!connection.outgoing.empty()) return absl::AbortedError("it takes not even a greeting");
  return OpenLanes(*session, cqs, Release(connection), greeting.geometry);
}

absl::Status TcpWire::OpenLanes(TcpSession& session, CqPair cqs, UniqueFd socket,
                                const LaneGeometry& theirs) {
  absl::StatusOr<std::shared_ptr<LanePair>> pair =
      rnic_.OpenLanePair(cqs.ours, cqs.theirs, session.peer, std::move(socket), theirs, fd());
  if (!pair.ok()) {
    Log(LogLevel::kWarning, fmt::format("{} cannot exchange messages with {}: {}", rnic_.name(),
                                        AddressText(session.address), pair.status().ToString()));
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
    rnic_.FinishConnect(request, session.peer, cqs.theirs);
  }
  return absl::OkStatus();
}

void TcpWire::FailLanes(TcpSession& session, CqPair cqs) {
  auto found = session.lanes.find(cqs);
  if (found == session.lanes.end() || !found->second.pending) return;
  const TcpSession::Lanes failed = std::move(found->second);
  session.lanes.erase(found);
  for (const ConnectRequest& request : failed.waiting) rnic_.FinishConnect(request, nullptr, 0);
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
  Log(LogLevel::kInfo, fmt::format("{}: the soft device {} is lost: {}", rnic_.name(),
                                   AddressText(address), reason.ToString()));
  std::vector<uint64_t> dials;
  for (const auto& [id, connection] : connections_) {
    if (connection->phase != Phase::kGreeting || connection->dialed) {
      if (connection->address == address) dials.push_back(id);
    }
  }
  for (uint64_t id : dials) {
    if (TcpWireConnection* connection = Find(id); connection != nullptr) End(*connection, reason);
  }
  if (session->peer != nullptr) rnic_.LosePeer(*session->peer);
  for (const ConnectRequest& request : session->waiting) rnic_.FinishConnect(request, nullptr, 0);
  for (const auto& [_, request] : session->resolving) rnic_.FinishConnect(request, nullptr, 0);
  for (const auto& [_, lanes] : session->lanes) {
    for (const ConnectRequest& request : lanes.waiting) rnic_.FinishConnect(request, nullptr, 0);
  }
}

}  // namespace verbena::internal::soft
