// Subchannel: one server of a set, or one executor of it, and this executor's connection to it.
//
// While it is open, a Task of its own keeps the connection connected: it connects at once, again
// when the link is lost, and after a failure when the connection's backoff allows. A server whose
// links open and are lost at once, again and again, counts as failed and gets growing pauses, too.
// Owned by a Balancer; on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_SUBCHANNEL_H_
#define VERBENA_RPC_CLIENT_SUBCHANNEL_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "verbena/rpc/balancing.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/client/outliers.h"
#include "verbena/rpc/client/route_table.h"
#include "verbena/transport/base/backoff.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/link_parameters.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class Subchannel;

class SubchannelOwner {
 public:
  virtual ~SubchannelOwner() = default;
  // An attempt to connect has ended. Called from the subchannel's Task: the owner may open and
  // close others, but not this one.
  virtual void OnReady(Subchannel& subchannel) = 0;
  virtual void OnFailed(Subchannel& subchannel) = 0;
  // ready() may have changed. Called on any stack: the owner only takes note.
  virtual void OnReadiness() = 0;
};

class Subchannel final : private ConnectionListener, private TaskListener {
 public:
  // `id` is the owner's name for it. `executor` is 0 for the first connection to the server, and
  // counts further ones.
  Subchannel(SubchannelOwner& owner, Connections& connections, ResolvedServer server, uint32_t id,
             uint32_t executor = 0);
  Subchannel(const Subchannel&) = delete;
  Subchannel& operator=(const Subchannel&) = delete;
  // Not from its own Task. An open one must be closed first.
  ~Subchannel() override;

  const ResolvedServer& server() const { return server_; }
  // A new weight or zone. The name and the addresses stay.
  void set_server(const ResolvedServer& server) { server_ = server; }
  uint32_t id() const { return id_; }
  uint32_t executor() const { return executor_; }
  // The same for all clients; differs between the executors of a server.
  uint64_t hash() const { return hash_; }
  // Whether `server` is the same one, perhaps with another weight or zone.
  bool Is(const ResolvedServer& server) const {
    return server.name == server_.name && server.addresses == server_.addresses;
  }

  void Open(const ExecutorWish& wish);
  // No new call may take the connection. Its links close as `end` says.
  void Close(Connections::End end);
  // nullptr: not open.
  Connection* connection() const { return connection_; }
  bool ready() const { return connection_ != nullptr && connection_->usable_session() != nullptr; }
  // Open, and its last attempt failed, as error() says.
  bool failed() const { return connection_ != nullptr && !ready() && !error().ok(); }
  const absl::Status& error() const {
    return flapping_.ok() ? connection_->last_error() : flapping_;
  }
  ChannelServer Describe() const;

  // Why it is not open though the policy wants it; OK by default.
  const absl::Status& refusal() const { return refusal_; }
  void set_refusal(absl::Status refusal) { refusal_ = std::move(refusal); }
  // For the owner's judgements (outliers.h).
  OutlierRecord& outlier() { return outlier_; }
  const OutlierRecord& outlier() const { return outlier_; }

 private:
  Task<void> KeepConnected();
  // The link has been lost, which was there since `opened`. Returns when the next attempt may
  // begin.
  TimePoint PauseAfter(TimePoint opened);
  void OnReadiness(Connection& connection) override;
  void OnTaskDone() override {}

  SubchannelOwner& owner_;
  Connections& connections_;
  ResolvedServer server_;
  const uint32_t id_;
  const uint32_t executor_;
  const uint64_t hash_;
  Connection* connection_ = nullptr;
  Event lost_;
  // Links that did not last longer than the longest pause, one after another.
  uint32_t flaps_ = 0;
  Backoff flap_backoff_{Connection::kInitialBackoff, Connection::kMaxBackoff};
  absl::Status flapping_;  // OK unless there were two of them
  absl::Status refusal_;
  OutlierRecord outlier_;
  bool warned_ = false;  // the log says that the server cannot be reached, which it could before
  Task<void> task_;
};

// A connection as Channel::Servers() shows it.
ChannelServer DescribeConnection(const Connection& connection, ResolvedServer server);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_SUBCHANNEL_H_
