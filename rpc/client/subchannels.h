// The servers of one channel's set, on one executor: Subchannel, one of them, and Subchannels, all
// of them.
//
// A Balancer owns them, on its executor's thread. No set takes more than three quarters of the
// links that an executor may have.

#ifndef VERBENA_RPC_CLIENT_SUBCHANNELS_H_
#define VERBENA_RPC_CLIENT_SUBCHANNELS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/client/server_feed.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/policy.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// Outliers: which servers of a set fail, or are slow, beside the others, and for how long they take
// no calls.
//
// Judging is a function of numbers and times, made once in each EjectionOptions::interval. A server
// that is ejected stays connected, and is readmitted by time alone; each further ejection lasts
// longer. A fault that most servers have ejects none of them. EjectionOptions::max_ejected_percent
// bounds how many are ejected at once. Each balancer judges for itself. On its executor's thread.
//
//   std::vector<JudgedServer> servers = ...;   // those that calls may go to
//   if (JudgeServers(options, now, servers)) Rebuild();

// The judgements on one server. A value.
struct OutlierRecord {
  CallTally before;       // at the last judgement
  uint64_t forgiven = 0;  // failures that no longer count as one after another
  uint32_t times = 0;     // ejections that are not forgotten yet
  bool ejected = false;
  TimePoint changed{};  // when it was readmitted, or an ejection forgotten
  TimePoint until{};    // while ejected
  std::string why;      // of the last ejection
};

// A server that JudgeServers() judges: its record and its counts. A value, for one call.
struct JudgedServer {
  OutlierRecord* record;   // not null
  const CallTally* tally;  // not null
};

// A server is judged by its latency if at least this many of its calls were timed in an interval.
inline constexpr uint64_t kLeastTimed = 4;

// Returns whether any server was ejected or readmitted.
bool JudgeServers(const EjectionOptions& options, TimePoint now,
                  const std::vector<JudgedServer>& servers);

class Subchannel;

// Owns subchannels, and hears how their attempts to connect go. On their executor's thread.
class SubchannelOwner {
 public:
  virtual ~SubchannelOwner() = default;
  // An attempt to connect has ended. These three are called from the subchannel's Task: the owner
  // may open and close others, but not this one.
  virtual void OnReady(Subchannel& subchannel) = 0;
  virtual void OnFailed(Subchannel& subchannel) = 0;
  // An attempt is under way for so long that the subchannel is now late().
  virtual void OnLate(Subchannel& subchannel) = 0;
  // ready() or failed() may have changed. Called on any stack: the owner only takes note.
  virtual void OnReadiness() = 0;
};

// Subchannel: one server of a set, or one executor of it, and this executor's connection to it.
//
// While it is open, a Task of its own keeps the connection connected: it connects at once, again
// when the link is lost, and after a failure when the connection's backoff allows. A server whose
// links open and are lost at once, again and again, counts as failed and gets growing pauses, too.
// Owned by a Balancer; on its executor's thread.
class Subchannel final : private ConnectionListener, private TaskListener {
 public:
  // As between two addresses of one server. (start)
  static constexpr Duration kPatience = Connection::kHeadStart;

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
  // Equal at all clients; differs between the executors of a server.
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
  // Open, and neither ready nor failed after an attempt of kPatience.
  bool late() const { return late_ && !ready() && !failed(); }
  const absl::Status& error() const {
    return flapping_.ok() ? connection_->last_error() : flapping_;
  }
  ChannelServer Describe() const;

  // Why it is not open though the policy wants it; OK by default.
  const absl::Status& refusal() const { return refusal_; }
  void set_refusal(absl::Status refusal) { refusal_ = std::move(refusal); }
  // Failed, and gives way to others for now. For the owner's search.
  bool tired() const { return tired_; }
  void set_tired(bool tired) { tired_ = tired; }
  // For the owner's judgements.
  OutlierRecord& outlier() { return outlier_; }
  const OutlierRecord& outlier() const { return outlier_; }

 private:
  Task<void> KeepConnected();
  // As Connection::Ready(); tells the owner when that takes long.
  Task<absl::Status> AwaitReady();
  // A link that was there since `opened` has been lost. Returns when the next attempt may begin.
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
  bool late_ = false;  // AwaitReady() waits longer than kPatience
  // Links that did not last for Connection::kLastingLink, one after another.
  uint32_t flaps_ = 0;
  Backoff flap_backoff_;
  absl::Status flapping_;  // OK unless there were two of them
  absl::Status refusal_;
  bool tired_ = false;
  OutlierRecord outlier_;
  bool warned_ = false;  // the log says that the server cannot be reached, which it could before
  Task<void> task_;
};

// A connection as Channel::Servers() shows it.
ChannelServer DescribeConnection(const Connection& connection, ResolvedServer server);

struct SubchannelsSetup {
  std::string target;  // for messages
  Balancing policy = Balancing::kRoundRobin;
  std::string zone;
  ExecutorWish wish;
  uint32_t subset_size = 0;           // 0: all
  uint32_t executors_per_server = 1;  // more: `wish` is not used
  // Random, and the same on all executors of a client.
  uint64_t client = 0;
  // The most links that an executor may have.
  uint32_t max_links = 1024;
};

// How high a client places a server in its ranking. The highest come first.
uint64_t SubsetRank(uint64_t client, uint64_t server_hash);

// Subchannels: the servers of one channel's set, on one executor, and which of them are connected.
//
// Decides by set, policy and failures which subchannels are open: all of them, or the first that
// can be reached (Balancing::kPickFirst), or a subset. If a client wants a single server, and that
// one is late, the next one is opened beside it; the first of the two that is ready serves until
// one before it is. A subset is chosen by rendezvous: each client ranks the servers by hashes of
// its own id and of their names, and takes the first ones. So the servers are covered evenly, each
// change of the set moves few links, and all executors of a client agree. While a server of the
// subset cannot be reached, the next one in the ranking takes its place, up to twice the size. If
// all of these fail and no server of the set is ready, the client looks on: one that fails gives
// way to the next in the ranking, again and again, at growing pauses. Neither a server that is
// ready nor one that has not failed yet ever gives way so. Once one is ready, the first in the
// ranking are tried again beside it. No set takes more than three quarters of the links that an
// executor may have, and a server that is ready keeps its links while others are tried.
//
// Owned by a Balancer; on its executor's thread.
class Subchannels {
 public:
  // How often a server of a subset that fails gives way to another, in the end. A newcomer is tried
  // about ten times meanwhile. (start)
  static constexpr Duration kLongestLook = std::chrono::seconds(10);

  Subchannels(SubchannelOwner& owner, Connections& connections, SubchannelsSetup setup);
  // Call before it is destroyed.
  void CloseAll();

  // A new set. Servers that stay keep their links; those of servers that left drain. Call Open()
  // next.
  void Set(const ServerSet& set);
  // Opens wanted connections and drains unwanted ones. Leaves `caller` alone, because its own Task
  // is running this; its next attempt, or that of an earlier subchannel, calls again.
  void Open(const Subchannel* caller);

  // Whether a failure or a success of one subchannel may open or close others.
  bool depends_on_failures() const;
  // The subchannels that calls may go to: those that are ready, and of these only those in the own
  // zone if there are any. In the order of the set.
  std::vector<Subchannel*> Callable() const;
  // One that is ready; nullptr: none is.
  const Subchannel* AnyReady() const;
  // The reason why none is ready; OK while an attempt may yet succeed. If servers have named times
  // to come again, it asks for the shortest of these waits.
  absl::Status Obstacle() const;
  // In the order of the set, each server once.
  std::vector<ChannelServer> Describe() const;

 private:
  // Servers of one group take each other's place.
  enum class Group : uint8_t { kNear, kFar };

  Group GroupOf(const ResolvedServer& server) const;
  // The server's first subchannel; the rest follows it.
  Subchannel& First(size_t server) const { return *all_[server * executors_]; }
  bool Failed(size_t server) const;
  // Whether any of its subchannels is ready, or late.
  bool Serves(size_t server) const;
  bool Late(size_t server) const;
  void OpenServer(size_t server);
  void CloseServer(size_t server, const Subchannel* caller, const absl::Status& refusal);
  void Rank();
  // How many ready servers stay when only failures decide: of each group at most `wanted`. No
  // server before them that fails takes their links, of the `most` that there are. One link is left
  // to try those before them.
  size_t ReadyToKeep(size_t wanted, size_t most) const;
  // If all open servers of `group` fail, and there are `room` of them or more: one of them is tired
  // from now on, or none is any more once all have been tried.
  void LookOn(Group group, const Subchannel* caller, size_t room);
  void ForgetTired();
  absl::Status Refusal(size_t most) const;

  SubchannelOwner& owner_;
  Connections& connections_;
  const SubchannelsSetup setup_;
  const size_t executors_;
  // executors_ for each server, in the order of the set.
  std::vector<std::unique_ptr<Subchannel>> all_;
  std::vector<uint32_t> ranking_;  // of servers
  bool refused_ = false;           // the log says that the set takes too many links
  struct Look {
    Backoff backoff{Connection::kInitialBackoff, kLongestLook};
    TimePoint next{};  // no server of the group gives way earlier
  };
  std::array<Look, 2> looks_;  // by group
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_SUBCHANNELS_H_
