// Connections of one executor to one executor of a server: Connection, and those who use one or
// listen to it.
//
// DeviceAttempts has the devices that one attempt to connect may go over, TriedServers the servers
// that a call has tried. The executor's Connections owns a Connection, on that
// executor's thread. At most kMaxDraining links drain at once.

#ifndef VERBENA_RPC_CLIENT_CONNECTION_H_
#define VERBENA_RPC_CLIENT_CONNECTION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/policy.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

class Connection;
class Shard;

// Hears when a connection gets or loses its usable link. Called on the stack of the code that
// changed this: a listener must not close, release or await anything.
class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  virtual void OnReadiness(Connection& connection) = 0;
};

// Connection: one executor's way to one executor of a server, through links that come and go.
//
// The first call connects, over the first of the runtime's devices on which both sides reach each
// other (DeviceAttempts). A device that keeps losing its links to this server comes last
// (DeviceScores). A server with several addresses is reached at the first that answers:
// each is tried 250 ms after the one before, or as soon as that one has failed, and they share one
// connect_timeout. If the handshake with the one that answered fails, the others are tried again,
// in the same way. If it is silent for as long as connect_timeout, the attempt ends, and the next
// one begins with the next address.
//
// A server that has too many handshakes under way may refuse one and name a time
// (RESOURCE_EXHAUSTED with a retry_after). The attempt then comes again, later than asked by up to
// a fifth, for connect_timeout; after that, calls that have a deadline wait on until it. A server
// that goes on refusing is asked less and less often, as one that cannot be reached.
//
// A link over another device than the first is temporary: after a pause the connection makes one
// over the first device beside it. Once the new link has proven itself, calls take it, and the
// temporary one closes when its last call has ended. If the temporary link is lost before that,
// calls begin an attempt to connect, too, and take whichever link is made first. If that one goes
// over the first device, no later link replaces it.
//
// The next call replaces a link that was lost. While the server cannot be reached, attempts back
// off exponentially, and calls fail at once with the last error. A server that goes away gracefully
// says so (GOAWAY): new calls then take a new link, and the old one closes when its last call has
// ended. A server that says GOAWAY on each link gains nothing: at most kMaxDraining links drain at
// once, for whatever reason, and a link that was of no use counts as a failed attempt. The second
// link in a row that is lost before it was of use also counts as one, as with a server that crashes
// on each first call.
//
// Channels share a connection and count as its users. When the last user is gone, the connection
// closes its links, and its owner frees it once they are down. If a server left the set of a
// channel that goes on, the links drain instead: they close when their last call has ended. Calls
// that need the connection across a wait hold a ConnectionUse. Owned by the executor's Connections,
// on that executor's thread.
class Connection final : private ClientSession::Listener {
 public:
  static constexpr Duration kInitialBackoff = std::chrono::milliseconds(10);
  // A link that lasted so long was of use, though nothing was answered over it.
  static constexpr Duration kLastingLink = std::chrono::seconds(2);
  // How long after a link over another device the first device is tried beside it: for so many
  // tries the shortest pause, then each twice the one before, up to the longest.
  static constexpr Duration kFirstReturn = std::chrono::seconds(10);
  static constexpr Duration kLongestReturn = std::chrono::minutes(5);
  static constexpr uint32_t kPromptReturns = 6;
  // Links that drain at once. One more closes the oldest of them.
  static constexpr size_t kMaxDraining = 8;

  // How long an address of a server is tried before the next is tried beside it, as in Happy
  // Eyeballs (RFC 8305). (start)
  static constexpr Duration kHeadStart = std::chrono::milliseconds(250);

  // `others` are further addresses of the same server, tried if nobody answers at `target`, in this
  // order: fewer than ResolvedServer::kMaxAddresses.
  Connection(Shard& shard, std::string target, const ExecutorWish& wish,
             std::vector<std::string> others = {});
  ~Connection() override;

  // The session that a call takes. nullptr if there is none: await Ready() first.
  ClientSession* usable_session() const {
    return current_ != nullptr && current_->usable() ? current_.get() : nullptr;
  }
  // Waits until there is a usable link. UNAVAILABLE when connecting fails, or failed a moment ago,
  // or got no answer within LinkLimits::connect_timeout, and once closed. DEADLINE_EXCEEDED is the
  // caller's own.
  Task<absl::Status> Ready();

  // Waits as Ready() does, and returns the session. DEADLINE_EXCEEDED if there is none before
  // `deadline`, which must be a time point or none, not a duration. With `wait_for_ready`, attempts
  // that fail for a reason that may pass (MayPass) are made again until then; without it, those
  // that a server refused with a time, unless there is no deadline.
  Task<absl::StatusOr<ClientSession*>> Session(Deadline deadline, bool wait_for_ready = false);
  // Whether the reason why no link could be had may pass by itself.
  static bool MayPass(const absl::Status& failure) {
    return absl::IsUnavailable(failure) || absl::IsDeadlineExceeded(failure) ||
           absl::IsResourceExhausted(failure);
  }

  // A channel begins to use it.
  void AddUser() { ++users_; }
  // A channel uses it no more. True if that was the last one.
  bool RemoveUser();
  // Call once it has no users. Closes its links, and cancels an attempt that is under way.
  void Close();
  // Close(), which lets the calls that use it end first.
  void Drain();
  // True if it is closed, and only its owner still refers to it.
  bool ended() const;

  // A listener must be removed before it ends, and before the connection does.
  void AddListener(ConnectionListener& listener) { listeners_.push_back(&listener); }
  void RemoveListener(ConnectionListener& listener) { std::erase(listeners_, &listener); }

  Shard& shard() const { return shard_; }
  // The same for all connections to the server's executors, and hardly for those to others: a hash
  // of its first address.
  size_t server() const { return server_; }
  uint64_t late_responses() const;
  // Counts how calls end from now on. Lives as long as the connection.
  const CallTally& KeepTally();
  // nullptr until then.
  const CallTally* tally() const { return tally_.get(); }
  // Counts changes of connecting(), last_error(), failures(), and of whether there is a usable
  // link. Never 0.
  uint64_t revision() const { return revision_; }
  // Waits until revision() has changed. Hold a ConnectionUse. Not OK when cancelled.
  Task<absl::Status> StateChanged() { co_return co_await state_changed_.Wait(); }
  // Calls and streams on the link that new calls take.
  uint32_t load() const { return current_ == nullptr ? 0 : current_->calls_in_flight(); }
  // Calls and streams on all links, those that drain included.
  uint32_t calls_in_flight() const;
  bool connecting() const { return connecting_; }
  // Why the last attempt failed; OK before the first, and once a link was made.
  const absl::Status& last_error() const { return last_error_; }
  // Attempts that failed since the last link that was of use.
  uint32_t failures() const { return failures_; }
  // No attempt begins earlier.
  TimePoint next_attempt() const { return next_attempt_; }

 private:
  friend class ConnectionUse;

  Task<void> Attempt();
  // Returns what `connecting` returns. INTERNAL if it throws, as the bootstrap of a program may.
  Task<absl::Status> Caught(Task<absl::Status> connecting) const;
  void NoteChange();
  // The current link takes no more calls.
  void Retire();
  // Moves the current link to retired_, and counts whether it was of use.
  void SetAside();
  // Whether the current link was worth connecting: the server answered a call or a stream over it,
  // or it lasted for kLastingLink.
  bool WasOfUse() const;
  void PutOffNextAttempt();
  // The pause until the next attempt: as the server asks, but longer after each failure.
  Duration PauseAfter(const absl::Status& failure);
  void CloseOldestDraining();
  void CloseLinks();
  void DrainLink();
  void CancelAttempt();
  absl::Status Unused() const;
  absl::Status SaidGoAway() const;
  // For a call whose deadline passes before there is a link.
  absl::Status TooLate() const;
  void TellListeners();
  // Addresses are counted: 0 is target_, and others_ follow.
  struct OpenedAddress {
    size_t address;
    TimePoint begun;  // when the first of the addresses was tried
    std::unique_ptr<MessageStream> stream;
  };
  struct AddressRace;
  // As TryConnect(), but if the server refuses and names a time, comes again then, for at most
  // connect_timeout.
  Task<absl::Status> ConnectInTurn();
  Task<absl::Status> TryConnect();
  // The first of `addresses` that answers, or nothing once none does. Each gets a head start over
  // the next. Puts the failures of those that do not answer into `failures`, by address.
  Task<std::optional<OpenedAddress>> OpenAny(const std::vector<size_t>& addresses,
                                             std::vector<absl::Status>& failures);
  // One of them, the `place`-th.
  Task<std::optional<OpenedAddress>> OpenInTurn(AddressRace& race, size_t place);
  // The failure of an address as calls hear of it.
  absl::Status Explained(size_t address, absl::Status failure, TimePoint begun) const;
  // Returns the failure of an attempt, of which some addresses have failed.
  static absl::Status TogetherOf(const std::vector<absl::Status>& failures);
  const std::string& AddressAt(size_t address) const {
    return address == 0 ? target_ : others_[address - 1];
  }
  // Way: the address and the device that a link goes over.
  struct Way {
    size_t address = 0;
    size_t device = 0;  // by its index in the shard
    size_t first = 0;   // the device that comes first, whether it was passed over or not
  };
  Task<absl::Status> TryDevices(size_t address, std::unique_ptr<MessageStream> stream);
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> OpenStream(const std::string& address);
  // A link over `way`, which has proven itself within `proof_time`. `only`: no other device may
  // reach the peer.
  Task<absl::StatusOr<std::unique_ptr<ClientSession>>> OpenLink(
      Way way, bool only, Duration proof_time, std::unique_ptr<MessageStream> stream);
  // New calls take `session` from now on, and the current link drains. Returns false if the current
  // link is usable and goes over the first device: then calls stay on that one, and the link of
  // `session` closes.
  bool Take(std::unique_ptr<ClientSession> session, Way way);
  // While the current link goes over another device than the first: tries that one beside it.
  Task<void> ReturnToFirst();
  Task<void> TryFirstAgain();
  Task<absl::Status> TryFirst();
  // The current link goes over another device than the first of its order.
  bool temporary() const { return current_ != nullptr && way_.device != way_.first; }
  std::string DeviceName(size_t device) const;
  // The device of the current link has lost it for `reason`.
  void NoteBroken(const absl::Status& reason);
  void OnSessionDown(ClientSession& session, const absl::Status& reason) override;
  void OnSessionDraining(ClientSession& session) override;
  void OnSessionIdle(ClientSession& session) override;

  Shard& shard_;
  const std::string target_;
  const size_t server_;
  const ExecutorWish wish_;
  const std::shared_ptr<Quota> landing_quota_;  // landings that the server asks for
  const std::shared_ptr<StreamShare> stream_share_;
  std::unique_ptr<CallTally> tally_;  // null: calls are not counted
  std::unique_ptr<ClientSession> current_;
  TimePoint opened_{};  // the current link
  Way way_;             // that it goes over
  // DeviceScores passed over its device when it was made: no other one reached the server.
  bool passed_over_ = false;
  // Draining, or down but perhaps still on the stack of a call: freed at the next attempt.
  std::vector<std::unique_ptr<ClientSession>> retired_;
  const std::vector<std::string> others_;
  size_t first_address_ = 0;  // where the next attempt begins
  uint32_t users_ = 0;
  uint32_t useless_links_ = 0;  // lost before they were of use, without one of use in between
  uint32_t uses_ = 0;
  bool closed_ = false;
  bool draining_ = false;  // closed, and its links drain
  bool connecting_ = false;
  // The scope of the attempt while one runs. The connection outlives the attempt.
  std::optional<CancelScope> attempt_;
  // The same for the search of a way back to the first device.
  bool returning_ = false;
  std::optional<CancelScope> return_;
  Backoff return_backoff_{kFirstReturn, kLongestReturn};
  uint32_t returns_tried_ = 0;
  Event state_changed_;
  uint64_t revision_ = 1;
  absl::Status last_error_;
  // Why the attempt that runs comes again later; otherwise OK.
  absl::Status put_off_;
  Backoff backoff_;
  TimePoint next_attempt_{};
  uint32_t failures_ = 0;
  uint64_t late_responses_ = 0;  // of links that are gone
  std::vector<ConnectionListener*> listeners_;
};

// Keeps a connection, and its links if they drain, while a coroutine of a call refers to the
// connection. May be empty; movable. On the connection's executor.
class ConnectionUse {
 public:
  ConnectionUse() = default;
  explicit ConnectionUse(Connection& connection) : connection_(&connection) { ++connection.uses_; }
  ConnectionUse(ConnectionUse&& other) noexcept
      : connection_(std::exchange(other.connection_, nullptr)) {}
  ConnectionUse& operator=(ConnectionUse&& other) noexcept {
    std::swap(connection_, other.connection_);
    return *this;
  }
  ~ConnectionUse() {
    if (connection_ != nullptr && --connection_->uses_ == 0 && connection_->draining_) [[unlikely]]
      connection_->DrainLink();
  }

  explicit operator bool() const { return connection_ != nullptr; }
  Connection& operator*() const { return *connection_; }
  Connection* operator->() const { return connection_; }

 private:
  Connection* connection_ = nullptr;
};

// The error of a caller on a thread that runs no executor of the channel's runtime.
[[gnu::cold]] absl::Status NotOnAnExecutor();

// DeviceAttempts: the devices that one attempt to connect may go over, in order, and how the tried
// ones have failed. Those that DeviceScores passes over come last.
//
// The log says which device was taken and why, once for each device of a runtime.
// DeviceStats::passed_over says why the others were not.
//
// A local of the attempt's coroutine, on its executor's thread.
class DeviceAttempts {
 public:
  // `stream` is the bootstrap connection to the peer, at `address`, which outlives this object.
  DeviceAttempts(Shard& shard, const MessageStream& stream, const std::string& address);

  // The first device, whether it is passed over or not. Devices that AddFailure() has found unfit
  // do not count, unless all are. Precondition: there is a device.
  size_t first() const { return first_; }
  // The devices to try, by index in the shard.
  const std::vector<size_t>& order() const { return order_; }
  // How long a link over order()[i] may take to prove itself, by ProofTimeOf().
  Duration ProofTime(size_t i) const;
  // Device order()[i] does not reach the peer. With FAILED_PRECONDITION or PERMISSION_DENIED it
  // never will: for example, the peer has no such device, or belongs to another user. If the device
  // is shared memory, the devices in reserve then join the order.
  void AddFailure(size_t i, const absl::Status& why);
  // Why no device reaches the address, after a failure of each. With a single device, its own
  // error.
  absl::Status Failure() const;
  // The link goes over device order()[i].
  void NoteChoice(size_t i) const;

 private:
  std::string NameOf(size_t device) const;
  // Why the link over order()[chosen] does not go over order()[other].
  std::string WhyNot(size_t other, size_t chosen) const;

  Shard& shard_;
  const std::string& address_;
  const bool same_host_;
  std::vector<size_t> order_;
  size_t first_ = 0;
  std::vector<absl::Status> failures_;  // of the first in order_
  std::vector<size_t> unfit_;           // devices that no link to this peer can go over
};

// ConnectOrder: which of a process's devices a connection tries, and in which order.
//
// On one host the software device's shared memory comes first: it is faster than any NIC's
// loopback. Then come RDMA devices, then TCP. Between hosts shared memory comes last: it cannot
// reach another host, and its error says so.

// Indices into `kinds`, each once. Devices that are alike keep their order.
inline std::vector<size_t> ConnectOrder(const std::vector<LinkKind>& kinds, bool same_host) {
  const auto rank = [same_host](LinkKind kind) {
    if (kind == LinkKind::kSoft) return same_host ? 0 : 3;
    return kind == LinkKind::kTcp ? 2 : 1;
  };
  std::vector<size_t> order;
  for (int place = 0; place <= 3; ++place) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (rank(kinds[i]) == place) order.push_back(i);
    }
  }
  return order;
}

// How long a link over the `i`-th of `order` may take to prove itself: kProofTime if a later one
// may reach the peer, too, otherwise as long as the attempt. `order` has indices into `kinds`.
inline Duration ProofTimeOf(size_t i, const std::vector<size_t>& order,
                            const std::vector<LinkKind>& kinds, bool same_host) {
  for (size_t next = i + 1; next < order.size(); ++next) {
    // Shared memory reaches no other host.
    if (same_host || kinds[order[next]] != LinkKind::kSoft) return kProofTime;
  }
  return Duration::max();
}

// TriedServers: the servers that a call has had attempts on, so that the next attempt goes
// elsewhere, or stays where it was.
//
// Knows them by Connection::server(): their connections may be gone, and another executor of a
// server is no other server. The last connection is kept. A value in the call's frame; one thread.
class TriedServers {
 public:
  // `found`, which may be null and outlives this, is set whenever an attempt has its server.
  explicit TriedServers(Event* found = nullptr) : found_(found) {}

  // An attempt has its server.
  void Add(Connection& connection) {
    last_ = ConnectionUse(connection);
    if (size_ < servers_.size() && !Has(connection)) servers_[size_++] = connection.server();
    NoteFound();
  }
  void NoteFound() {
    ++times_found_;
    if (found_ != nullptr) found_->Set();
  }
  // How many attempts have had a server.
  int times_found() const { return times_found_; }
  bool Has(const Connection& connection) const {
    const auto end = servers_.begin() + size_;
    return std::find(servers_.begin(), end, connection.server()) != end;
  }
  bool empty() const { return size_ == 0; }

  // Only the last server knows whether the call has run: the next attempts go there, too.
  void Stay() { stays_ = true; }
  // The connection to stay with; nullptr: the next attempt goes elsewhere.
  Connection* home() const { return stays_ && size_ > 0 ? &*last_ : nullptr; }

 private:
  std::array<size_t, RetryPolicy::kMaxAttempts> servers_{};
  size_t size_ = 0;
  Event* const found_;
  int times_found_ = 0;
  ConnectionUse last_;
  bool stays_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CONNECTION_H_
