// The servers of channels' targets: ServerFeed, those of one target, and ServerFeeds, which lets
// the channels of one runtime to one target share a feed.

#ifndef VERBENA_RPC_CLIENT_SERVER_FEED_H_
#define VERBENA_RPC_CLIENT_SERVER_FEED_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/shard/parts.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

class Shard;

using ServerSet = std::vector<ResolvedServer>;

// Hears of a feed's sets, on its own executor.
class FeedListener {
 public:
  // `set` is nullptr if there was none yet; `error` is the resolver's last.
  virtual void OnSet(const std::shared_ptr<const ServerSet>& set, const absl::Status& error) = 0;

 protected:
  ~FeedListener() = default;
};

// A listener's entry in the feed. It may outlive the listener.
struct FeedSubscriber {
  FeedListener* listener = nullptr;  // used on its executor alone; nullptr once it is gone
  std::shared_ptr<ExecutorGate> gate;
  bool told = false;  // a message to it is on its way; guarded by the feed's mutex
};

// ServerFeed: the servers of one target, for the balancers of its channels on all executors.
//
// The executor of the first balancer runs the resolver, until Stop(); the other executors get a
// message with each new set, at most every 100 ms. The last good set stays while the resolver
// fails. Shared by the channels, their balancers and the Task that runs the resolver; a mutex
// guards what several threads use, and no call takes it.
class ServerFeed : public std::enable_shared_from_this<ServerFeed> {
 public:
  ServerFeed(std::string target, std::shared_ptr<Resolver> resolver);
  // A target that does not parse, or has no resolver: no server, and `error` is why.
  ServerFeed(std::string target, absl::Status error);

  // Call this on the executor of `shard`. From now on the subscriber's listener hears of each new
  // set, and of errors while there is no set. It hears at once of the set or error that there is.
  // If that is an error alone, the pause after it ends, so that a new channel waits for a lookup
  // and not for the pause. The error is told all the same: the resolver may pause by itself, or
  // say nothing until its source changes.
  void Subscribe(const std::shared_ptr<FeedSubscriber>& subscriber, Shard& shard);
  // The listener ends.
  void Unsubscribe(const std::shared_ptr<FeedSubscriber>& subscriber);
  // A server cannot be reached. From any executor of the subscribers.
  void Refresh();
  // Nobody needs further sets. From any thread, also after the runtime's end; once.
  void Stop();
  // False if no resolver could be made.
  bool resolves() const { return resolver_ != nullptr; }

 private:
  static Task<void> Run(std::shared_ptr<ServerFeed> feed, Shard& shard);
  Task<absl::StatusOr<ServerSet>> Next();
  // Checks the set, and fills in the names.
  absl::StatusOr<ServerSet> Check(ServerSet servers) const;
  void Publish(ServerSet servers);
  void PublishError(const absl::Status& error);
  // Sends a message, unless one is on its way, so that a resolver faster than an executor does not
  // fill the executor's queue. Call with the mutex held.
  void Tell(const std::shared_ptr<FeedSubscriber>& subscriber);
  // The message has arrived: tells the listener of the newest set.
  void Deliver(FeedSubscriber& subscriber);

  const std::string target_;
  const std::shared_ptr<Resolver> resolver_;  // nullptr: none could be made
  // Both on the executor that runs the resolver.
  Event stop_;
  Event pause_end_;  // of the pause after an error

  std::mutex mutex_;
  // The rest is guarded by it.
  std::vector<std::shared_ptr<FeedSubscriber>> subscribers_;
  std::shared_ptr<ExecutorGate> runner_;      // of the executor that runs the resolver
  std::shared_ptr<const ServerSet> servers_;  // nullptr: none yet
  absl::Status error_;                        // the resolver's last answer
  bool refreshes_ = false;                    // a message to the resolver is on its way
};

// ServerFeeds: the feeds of one runtime, a part of it, each shared by the channels to one target.
//
// So a runtime has one resolver for a target, with one watch and one period, however many channels
// it has. Runtimes share none: their clocks differ, and each ends by itself. A feed ends with the
// last holder of what To() or Alone() returned; a later channel gets a new one. What they return
// may outlive this object. From any thread. Bounded by the channels: entries of feeds that have
// ended go when the next feed is made.
class ServerFeeds final : public Part {
 public:
  // The feed of `target`: the one that others hold, or what `make` returns. One without a resolver
  // is for this caller alone, and the next one makes another. `make` runs under the mutex: it makes
  // a resolver, and looks nothing up.
  std::shared_ptr<ServerFeed> To(const std::string& target,
                                 absl::FunctionRef<std::shared_ptr<ServerFeed>()> make);
  // A feed that nobody else gets.
  static std::shared_ptr<ServerFeed> Alone(std::shared_ptr<ServerFeed> feed);

 private:
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<ServerFeed>> feeds_;  // guarded by it
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_SERVER_FEED_H_
