// TcpWire: what it agrees with its peers.

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
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
// Lane connections of one session: more than two devices make in practice, and a bound for a faulty
// peer.
constexpr size_t kMaxCqPairs = 4096;

}  // namespace

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
  if (!rnic_.SendCqOf(request.qpn).has_value()) return;
  TcpSession* session = FindSession(request.address);
  if (session == nullptr) {
    absl::StatusOr<TcpShares::Share> share = TakePeer(request.address.gid);
    if (!share.ok()) {
      rnic_.FinishConnect(request, nullptr, 0);
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
  if (session == nullptr || session->control != 0) return;
  std::erase_if(session->waiting, [&](const ConnectRequest& one) {
    return one.qpn == request.qpn && one.remote_qpn == request.remote_qpn;
  });
  // A peer that has our greeting may take the session for its own.
  const TcpWireConnection* dial = Find(session->dialing);
  if (!session->waiting.empty() || (dial != nullptr && dial->phase != Phase::kDialing)) return;
  EndSession(request.address, absl::CancelledError("nobody waits for it any more"));
}

void TcpWire::Dial(TcpSession& session, TcpGreeting::Kind kind, CqPair cqs) {
  // A session has the socket of its control connection. Those that look for another owner of its
  // name count as lanes do.
  const bool probe = kind == TcpGreeting::Kind::kControl && session.control != 0;
  TcpShares::Share share;
  if (kind == TcpGreeting::Kind::kLanes || probe) {
    absl::StatusOr<TcpShares::Share> taken = TakeSocket(session.address.gid);
    if (!taken.ok()) {
      if (!probe) FailLanes(session, cqs);
      return;
    }
    share = *std::move(taken);
  }
  absl::StatusOr<UniqueFd> socket =
      DialTcp(session.address, dial_from_own_address_ ? &address() : nullptr);
  const absl::Status dialed = socket.status();
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
  if (!dialed.ok()) {
    End(connection, dialed);
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
    if (connection.probe) return;
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
  TcpSession::Resolving& resolving = session.resolving[id];
  resolving.request = request;
  resolving.deadline = SaturatingAdd(now_, kAskPatience);
  Until(resolving.deadline);
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
  if (!found->second.request.has_value()) {
    // Late.
    --session.unanswered;
    session.resolving.erase(found);
    return absl::OkStatus();
  }
  const ConnectRequest request = *found->second.request;
  session.resolving.erase(found);
  const std::optional<uint64_t> ours = rnic_.SendCqOf(request.qpn);
  if (!message.found || !ours.has_value()) {
    rnic_.FinishConnect(request, nullptr, 0);
    return absl::OkStatus();
  }
  return WantLanes(session, request, {.ours = *ours, .theirs = message.receiver_cq});
}

void TcpWire::FailResolve(const DeviceAddress& address, uint64_t request) {
  TcpSession* session = FindSession(address);
  if (session == nullptr) return;
  auto found = session->resolving.find(request);
  if (found == session->resolving.end() || !found->second.request.has_value()) return;
  const ConnectRequest failed = *std::exchange(found->second.request, std::nullopt);
  found->second.deadline = kNever;
  logs_.lost.Write(LogLevel::kInfo, now_,
                   fmt::format("{}: {} does not say in time how queue pair {} is reached",
                               rnic_.name(), AddressText(address), failed.remote_qpn));
  rnic_.FinishConnect(failed, nullptr, 0);
  if (++session->unanswered > kMaxUnanswered) {
    EndSession(address, absl::DeadlineExceededError("it answers nothing"));
  }
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
      session->our_secret != greeting.session) {
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
  absl::StatusOr<TcpShares::Share> share =
      TakeLanes(connection.source.address, cqs.ours, greeting.geometry);
  if (!share.ok()) return Refuse(connection, greeting.kind, TcpGreeting::Verdict::kShare);
  VERBENA_RETURN_IF_ERROR(
      Send(connection, Encode(TcpGreeting{.kind = greeting.kind,
                                          .sender = address(),
                                          .session = session->their_secret,
                                          .sender_cq = cqs.ours,
                                          .receiver_cq = cqs.theirs,
                                          .geometry = rnic_.tcp_lane_geometry()})));
  if (!connection.outgoing.empty()) return absl::AbortedError("it takes not even a greeting");
  return OpenLanes(*session, cqs, Release(connection), greeting.geometry, *share);
}

absl::Status TcpWire::OpenDialedLanes(TcpSession& session, TcpWireConnection& connection,
                                      const LaneGeometry& theirs) {
  const CqPair cqs = connection.cqs;
  UniqueFd socket = Release(connection);
  // The next one has the socket, too.
  connection.share.reset();
  absl::StatusOr<TcpShares::Share> share = TakeLanes(session.address.gid, cqs.ours, theirs);
  if (share.ok()) {
    return OpenLanes(session, cqs, std::move(socket), theirs, *share);
  }
  shutdown(socket.get(), SHUT_RDWR);
  FailLanes(session, cqs);
  return absl::OkStatus();
}

absl::Status TcpWire::OpenLanes(TcpSession& session, CqPair cqs, UniqueFd socket,
                                const LaneGeometry& theirs, const TcpShares::Share& share) {
  absl::StatusOr<std::shared_ptr<LanePair>> pair = rnic_.OpenLanePair(
      cqs.ours, cqs.theirs, session.peer, std::move(socket), theirs, share, fd());
  if (!pair.ok()) {
    logs_.refused.Write(LogLevel::kWarning, now_,
                        fmt::format("{} cannot exchange messages with {}: {}", rnic_.name(),
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
  logs_.lost.Write(LogLevel::kInfo, now_,
                   fmt::format("{}: the soft device {} is lost: {}", rnic_.name(),
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
  for (const auto& [_, resolving] : session->resolving) {
    if (resolving.request.has_value()) rnic_.FinishConnect(*resolving.request, nullptr, 0);
  }
  for (const auto& [_, lanes] : session->lanes) {
    for (const ConnectRequest& request : lanes.waiting) rnic_.FinishConnect(request, nullptr, 0);
  }
}

}  // namespace verbena::internal::soft
