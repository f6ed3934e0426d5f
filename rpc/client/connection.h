// Connection: one executor's way to one executor of a server, through links that come and go.
//
// The first call connects, over the first of the runtime's devices on which both sides reach each
// other (connect_order.h). The next call replaces a link that was lost. While the server cannot be
// reached, attempts back off exponentially, and calls fail at once with the last error. A server
// that goes away gracefully says so (GOAWAY): new calls then take a new link, and the old one
// closes when its last call has ended. A server that says GOAWAY on each link gains nothing: at
// most kMaxDraining links drain at once, and a link that was of no use counts as a failed attempt.
// So does the second in a row that is lost before it was of use, as by a server that crashes on
// each first call.
//
// Channels share a connection and count as its users. When the last user is gone, the connection
// closes its links, and its owner frees it once they are down. Owned by the executor's
// Connections, on that executor's thread.

#ifndef VERBENA_RPC_CLIENT_CONNECTION_H_
#define VERBENA_RPC_CLIENT_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/client/client_session.h"
#include "verbena/rpc/deadline.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/link_parameters.h"
#include "verbena/transport/coro/backoff.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class LandingShare;
class Shard;

class Connection final : private ClientSession::Listener {
 public:
  static constexpr Duration kInitialBackoff = std::chrono::milliseconds(10);
  static constexpr Duration kMaxBackoff = std::chrono::seconds(2);
  // Links that drain at once. One more closes the oldest of them.
  static constexpr size_t kMaxDraining = 8;

  Connection(Shard& shard, std::string target, const ExecutorWish& wish);
  ~Connection() override;

  // The session that a call takes, or nullptr: then Ready() first.
  ClientSession* usable_session() const {
    return current_ != nullptr && current_->usable() ? current_.get() : nullptr;
  }
  // Waits until there is a usable link. UNAVAILABLE when connecting fails, or failed a moment ago,
  // and once closed.
  Task<absl::Status> Ready();

  // The same, and returns the session. DEADLINE_EXCEEDED when there is none before `deadline`,
  // which must be a time, or none.
  Task<absl::StatusOr<ClientSession*>> Session(Deadline deadline);

  // The channels that use it.
  void AddUser() { ++users_; }
  // True when that was the last.
  bool RemoveUser();
  // Call once it has no users. Closes its links, and those of an attempt that is under way.
  void Close();
  // Closed, and nothing refers to it any more but its owner.
  bool ended() const;

  Shard& shard() const { return shard_; }
  uint64_t late_responses() const;

 private:
  Task<void> Attempt();
  // Ready() looks again.
  void WakeWaiters();
  // The current link takes no more calls.
  void Retire();
  // Whether the current link was worth connecting: it answered a call, or lasted longer than the
  // longest pause between attempts.
  bool WasOfUse() const;
  void PutOffNextAttempt();
  void CloseOldestDraining();
  void CloseLinks();
  Task<absl::Status> TryConnect();
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> OpenStream();
  Task<absl::Status> ConnectOver(size_t device, std::unique_ptr<MessageStream> stream);
  void OnSessionDown(ClientSession& session, const absl::Status& reason) override;
  void OnSessionDraining(ClientSession& session) override;
  void OnSessionIdle(ClientSession& session) override;

  Shard& shard_;
  const std::string target_;
  const ExecutorWish wish_;
  const std::shared_ptr<LandingShare> landing_share_;
  const std::shared_ptr<StreamShare> stream_share_;
  std::unique_ptr<ClientSession> current_;
  TimePoint opened_{};  // the current link
  // Draining, or down but perhaps still on the stack of a call: freed at the next attempt.
  std::vector<std::unique_ptr<ClientSession>> retired_;
  uint32_t users_ = 0;
  uint32_t useless_links_ = 0;  // lost before they were of use, without one of use in between
  bool closed_ = false;
  bool connecting_ = false;
  Event attempt_ended_;
  absl::Status last_error_;
  Backoff backoff_{kInitialBackoff, kMaxBackoff};
  TimePoint next_attempt_{};
  uint64_t late_responses_ = 0;  // of links that are gone
};

// The error of a Channel's user on a thread that has no connection of it.
[[gnu::cold]] absl::Status NotOnAnExecutor();

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CONNECTION_H_
