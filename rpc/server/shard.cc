#include "verbena/rpc/server/shard.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/server/dedupe.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace {

// How long a shutdown waits, past its deadline, for cancelled handlers to answer, and for clients
// to close links that have nothing left to do.
constexpr Duration kCloseGrace = std::chrono::seconds(1);
// How long clients that have been told GOAWAY may still make calls, as part of the grace. (start)
constexpr Duration kLeaveGrace = std::chrono::seconds(1);
// Between two lines in the log about handlers that outlast the server.
constexpr Duration kReportInterval = std::chrono::seconds(10);

std::string Described(const RunningHandlers& running) {
  std::string text;
  for (const auto& [method, count] : running) {
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", count, method);
  }
  return text;
}

}  // namespace

ServerShard::ServerShard(Shard& shard, const MethodTable& methods, const ServerLimits& limits)
    : shard_(shard), state_(shard, methods, limits), calls_(state_), tasks_(shard.executor()) {}

void ServerShard::Serve(std::unique_ptr<MessageStream> stream, LinkParameters offer) {
  tasks_.Spawn(Accept(std::move(stream), std::move(offer)));
}

Task<void> ServerShard::Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer) {
  finished_.clear();
  if (!closed_) state_.WatchLag();
  const uint64_t number = ++accepted_;
  absl::Status accepted;
  try {
    accepted = co_await AcceptAs(number, std::move(stream), std::move(offer));
  } catch (const std::exception& error) {
    // The stream may be the program's.
    accepted = absl::InternalError(fmt::format("its handshake threw: {}", error.what()));
  } catch (...) {
    accepted = absl::InternalError("its handshake threw");
  }
  if (accepted.ok()) co_return;
  VERBENA_LOG_LINE(kServer, kInfo, fmt::format("a link was not accepted: {}", accepted.ToString()));
  // If the link was lost after it had opened, OnSessionDown() has taken it out already, or
  // OnSessionIdle() will. The session may be freed by now, and another may be at its address.
  auto found = sessions_.find(number);
  if (found != sessions_.end() && found->second->idle()) sessions_.erase(found);
  if (sessions_.empty() && state_.shutdown_begins().is_set()) unlinked_.Set();
}

Task<absl::Status> ServerShard::AcceptAs(uint64_t number, std::unique_ptr<MessageStream> stream,
                                         LinkParameters offer) {
  auto owned =
      std::make_unique<ServerSession>(static_cast<ServerSession::Owner&>(*this), state_, calls_,
                                      ClientOf(*stream, offer.runtime_id), stream->peer(), number);
  ServerSession* session = owned.get();
  sessions_.emplace(number, std::move(owned));
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link,
                              co_await Open(std::move(stream), std::move(offer), *session));
  if (closed_) {
    link->Close(absl::UnavailableError("the server shut down"));  // may end `session`
  } else if (state_.shutdown_begins().is_set()) {
    session->SendGoAway();
  }
  co_return absl::OkStatus();
}

// On the device of the kind that the client offers.
Task<absl::StatusOr<Link*>> ServerShard::Open(std::unique_ptr<MessageStream> stream,
                                              LinkParameters offer, ServerSession& session) {
  absl::StatusOr<Endpoint*> endpoint = co_await shard_.AwaitEndpointFor(offer.kind);
  if (endpoint.ok()) {
    [[maybe_unused]] const auto use = (*endpoint)->Use();
    co_return co_await (*endpoint)->Accept(std::move(stream), std::move(offer), session,
                                           state_.methods().offered(),
                                           limits().dedupe->incarnation());
  }
  absl::Status told = co_await WithDeadline(RefuseOffer(*stream, endpoint.status()),
                                            shard_.wanted_limits().connect_timeout);
  if (!told.ok()) VERBENA_LOG_LINE(kServer, kInfo, told.ToString());
  co_return endpoint.status();
}

ServerStats ServerShard::stats() const {
  ServerStats stats = state_.stats();
  stats.idle_calls = calls_.idle_calls();
  return stats;
}

std::shared_ptr<ServerClient> ServerShard::ClientOf(const MessageStream& stream,
                                                    const RuntimeId& id) {
  ForgetExpired();
  std::weak_ptr<ServerClient>& known = clients_[std::pair(stream.source(), id)];
  if (std::shared_ptr<ServerClient> client = known.lock()) return client;
  std::shared_ptr<ServerSource> source = SourceOf(stream.source(), stream.names_source());
  StreamMemory& streams = shard_.stream_memory();
  auto share = std::make_shared<StreamShare>(streams, ClientShare(0, streams.budget_bytes()),
                                             "one client's streams", source->streams());
  ClientIdentity identity{.runtime = id, .source = stream.source()};
  if (!stream.names_source()) identity.source += id.ToString();
  auto client = std::make_shared<ServerClient>(std::move(source), limits().client, std::move(share),
                                               std::move(identity));
  known = client;
  return client;
}

std::shared_ptr<ServerSource> ServerShard::SourceOf(const std::string& address, bool names_source) {
  std::weak_ptr<ServerSource>& known = sources_[address];
  if (std::shared_ptr<ServerSource> source = known.lock()) return source;
  StreamMemory& streams = shard_.stream_memory();
  const size_t stream_bytes = SourceShare(0, streams.budget_bytes(), 0, names_source);
  auto source = std::make_shared<ServerSource>(
      names_source ? limits().source : limits().nameless_source,
      std::make_shared<StreamShare>(streams, stream_bytes, "the streams of one source address"),
      names_source ? ServerSource::kMaxQueuedRefusals : std::numeric_limits<size_t>::max(),
      names_source || limits().admission.max_running_per_source != 0);
  known = source;
  return source;
}

void ServerShard::ForgetExpired() {
  const size_t most = 2 * sessions_.size() + 16;
  const auto expired = [](const auto& entry) { return entry.second.expired(); };
  if (clients_.size() > most) absl::erase_if(clients_, expired);
  if (sources_.size() > most) absl::erase_if(sources_, expired);
}

void ServerShard::OnSessionOpen(ServerSession& session) {
  by_link_.insert_or_assign(session.link_identity(), &session);
}

void ServerShard::OnSessionDown(ServerSession& session) {
  if (session.idle()) OnSessionIdle(session);
}

void ServerShard::OnSessionIdle(ServerSession& session) {
  auto found = sessions_.find(session.number());
  if (found == sessions_.end()) return;
  by_link_.erase(session.link_identity());
  finished_.push_back(std::move(found->second));
  sessions_.erase(found);
  if (sessions_.empty() && state_.shutdown_begins().is_set()) unlinked_.Set();
}

void ServerShard::ReclaimGrants(const Endpoint& endpoint) {
  if (state_.granted_bytes() == 0 || !reclaimed_.insert(&endpoint).second) return;
  for (const auto& [number, session] : sessions_) {
    if (session->uses(endpoint)) session->RevokeGrants();
  }
}

void ServerShard::ReclaimGrants(ServerSource& source) {
  if (!source.BeginReclaim()) return;
  for (const auto& [number, session] : sessions_) {
    if (&session->client().source() == &source) session->RevokeGrants();
  }
}

ServerSession* ServerShard::FindByLink(uint64_t identity) const {
  const auto found = by_link_.find(identity);
  return found == by_link_.end() ? nullptr : found->second;
}

Task<absl::Status> ServerShard::EndAttempt(RuntimeId client, EarlierAttempt attempt) {
  ServerSession* session = FindByLink(attempt.link);
  if (session == nullptr || session->client().identity().runtime != client) {
    co_return absl::OkStatus();
  }
  session->CloseLink(absl::UnavailableError(
      "the client has lost this link, and repeats a call of it over another one"));
  // Closing the link may have ended the session.
  session = FindByLink(attempt.link);
  ServerCall* const call =
      session == nullptr ? nullptr : session->Find({attempt.slot, attempt.generation});
  if (call == nullptr) co_return absl::OkStatus();
  co_return co_await call->Ended();
}

Task<absl::Status> ServerShard::WaitUntilUnlinked() {
  if (sessions_.empty()) co_return absl::OkStatus();
  co_return co_await unlinked_.Wait();
}

void ServerShard::CountRunning(RunningHandlers& running) {
  for (const auto& [number, session] : sessions_) session->CountRunning(running);
}

Task<void> ServerShard::CancelHandlers(TimePoint until) {
  RunningHandlers running;
  CountRunning(running);
  VERBENA_LOG_LINE(
      kServer, kWarning,
      fmt::format("calls outlast the grace of the server's shutdown and are cancelled: {}",
                  running.empty() ? "no handler runs" : Described(running)));
  // Before the walk over the sessions, since a call that waits ends at once.
  state_.RefuseWaiting(RefusalReason::kShuttingDown);
  for (const auto& [number, session] : sessions_) session->CancelAll();
  (void)co_await WithDeadline(calls_.WaitUntilIdle(), until);
}

Task<void> ServerShard::Shutdown(TimePoint deadline) {
  state_.shutdown_begins().Set();
  for (const auto& [number, session] : sessions_) session->SendGoAway();
  // Requests may be on their way to here while the GOAWAY is on its way to their client. A client
  // that knows makes no more calls, and closes its link once it has its last response.
  const TimePoint known = std::min(deadline, SaturatingAdd(executor().now(), kLeaveGrace));
  if (executor().now() < known) (void)co_await WithDeadline(WaitUntilUnlinked(), known);
  calls_.Drain();
  absl::Status drained = co_await WithDeadline(calls_.WaitUntilIdle(), deadline);
  // A client closes its link once it has its last response, so the end of the link proves that it
  // has. The shutdown waits for no other clients.
  const TimePoint until = SaturatingAdd(executor().now(), kCloseGrace);
  if (!drained.ok()) co_await CancelHandlers(until);
  if (calls_.active() == 0) (void)co_await WithDeadline(WaitUntilUnlinked(), until);
  closed_ = true;
  std::vector<Link*> open;
  for (const auto& [number, session] : sessions_) {
    if (session->link() != nullptr) open.push_back(session->link());
  }
  for (Link* link : open) link->Close(absl::UnavailableError("the server shut down"));
  state_.Stop();
  tasks_.RequestCancel();
  co_await JoinLogged(tasks_, "the server");
}

Task<void> ServerShard::AwaitHandlers() {
  while (calls_.active() > 0) {
    RunningHandlers running;
    CountRunning(running);
    VERBENA_LOG_LINE(kServer, kWarning,
                     fmt::format("the server waits for handlers that ignore their cancellation: {}",
                                 Described(running)));
    (void)co_await WithDeadline(calls_.WaitUntilIdle(), kReportInterval);
  }
}

}  // namespace verbena::internal
