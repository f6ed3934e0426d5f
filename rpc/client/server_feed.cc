#include "verbena/rpc/client/server_feed.h"

#include <chrono>
#include <exception>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::seconds(10);
// (start) From one set to the next.
constexpr Duration kPauseOfSets = std::chrono::milliseconds(100);

constexpr size_t kMostOfAnError = 1024;

absl::Status CheckServer(const ResolvedServer& server) {
  VERBENA_RETURN_IF_ERROR(CheckResolvedText("a server's name", server.name));
  VERBENA_RETURN_IF_ERROR(CheckResolvedText("a server's zone", server.zone));
  if (server.addresses.empty() || server.addresses.size() > ResolvedServer::kMaxAddresses) {
    return absl::InvalidArgumentError(
        fmt::format("the server \"{}\" has {} addresses, but must have 1 to {}", server.name,
                    server.addresses.size(), ResolvedServer::kMaxAddresses));
  }
  for (const std::string& address : server.addresses) {
    VERBENA_RETURN_IF_ERROR(CheckResolvedText("a server's address", address));
  }
  if (server.weight < 1 || server.weight > ResolvedServer::kMaxWeight) {
    return absl::InvalidArgumentError(fmt::format("the weight of {} is {}, but must be in [1, {}]",
                                                  server.name, server.weight,
                                                  ResolvedServer::kMaxWeight));
  }
  return absl::OkStatus();
}

// Stops a feed when its last user has gone. The feed itself lives on until its Task has ended.
class FeedUse {
 public:
  explicit FeedUse(std::shared_ptr<ServerFeed> feed) : feed_(std::move(feed)) {}
  FeedUse(const FeedUse&) = delete;
  FeedUse& operator=(const FeedUse&) = delete;
  ~FeedUse() { feed_->Stop(); }

 private:
  const std::shared_ptr<ServerFeed> feed_;
};

}  // namespace

ServerFeed::ServerFeed(std::string target, std::shared_ptr<Resolver> resolver)
    : target_(std::move(target)), resolver_(std::move(resolver)) {
  VERBENA_CHECK(!resolver_->taken_.exchange(true))
      << "the resolver of " << target_
      << " serves another channel already: make one for each channel (ChannelOptions::resolver)";
}

ServerFeed::ServerFeed(std::string target, absl::Status error)
    : target_(std::move(target)), error_(std::move(error)) {}

void ServerFeed::Subscribe(const std::shared_ptr<FeedSubscriber>& subscriber, Shard& shard) {
  bool runs = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    subscribers_.push_back(subscriber);
    if (resolver_ != nullptr && runner_ == nullptr) {
      runner_ = subscriber->gate;
      runs = true;
    }
    if (servers_ != nullptr || !error_.ok()) Tell(subscriber);
    if (servers_ == nullptr && !error_.ok() && runner_ != nullptr) {
      runner_->Post([feed = shared_from_this()] { feed->pause_end_.Set(); });
    }
  }
  if (runs && !shard.closing()) shard.tasks().Spawn(Run(shared_from_this(), shard));
}

void ServerFeed::Unsubscribe(const std::shared_ptr<FeedSubscriber>& subscriber) {
  subscriber->listener = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase(subscribers_, subscriber);
}

void ServerFeed::Refresh() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (runner_ == nullptr || refreshes_) return;
  refreshes_ = runner_->Post([feed = shared_from_this()] {
    {
      std::lock_guard<std::mutex> lock(feed->mutex_);
      feed->refreshes_ = false;
    }
    feed->resolver_->Refresh();
  });
}

void ServerFeed::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  // If the gate is closed, the resolver's Task has ended.
  if (runner_ != nullptr) {
    runner_->Post([feed = shared_from_this()] {
      feed->stop_.Set();
      feed->pause_end_.Set();
    });
  }
}

// In a Task of its own, since nobody may wait for a lookup that blocks when the channel ends.
Task<void> ServerFeed::Run(std::shared_ptr<ServerFeed> feed, Shard& shard) {
  Backoff backoff(kFirstPause, kLongestPause);
  while (!feed->stop_.is_set() && !shard.closing()) {
    auto next = co_await WhenAny(feed->Next(), WaitFor(feed->stop_));
    if (next.index() != 0 || shard.closing()) break;
    absl::StatusOr<ServerSet> servers = std::move(std::get<0>(next));
    if (servers.ok()) servers = feed->Check(*std::move(servers));
    if (servers.ok()) {
      backoff.Reset();
      feed->Publish(*std::move(servers));
      // A resolver that never waits keeps no executor busy. It says the newest set when it is asked
      // again.
      (void)co_await WithDeadline(WaitFor(feed->stop_), kPauseOfSets);
    } else {
      feed->PublishError(servers.status());
      (void)co_await WithDeadline(WaitFor(feed->pause_end_), backoff.Next());
      feed->pause_end_.Reset();
    }
  }
}

Task<absl::StatusOr<ServerSet>> ServerFeed::Next() {
  try {
    co_return co_await resolver_->Next();
  } catch (const std::exception& error) {
    co_return absl::InternalError(
        fmt::format("the resolver of {} threw: {}", target_, error.what()));
  } catch (...) {
    co_return absl::InternalError(fmt::format("the resolver of {} threw", target_));
  }
}

absl::StatusOr<ServerSet> ServerFeed::Check(ServerSet servers) const {
  if (servers.size() > Resolver::kMaxServers) {
    return absl::InvalidArgumentError(fmt::format("{} stands for {} servers; the most are {}",
                                                  target_, servers.size(), Resolver::kMaxServers));
  }
  std::set<std::string> names;
  for (ResolvedServer& server : servers) {
    VERBENA_RETURN_IF_ERROR(CheckServer(server));
    if (server.name.empty()) server.name = server.addresses.front();
    if (!names.insert(server.name).second) {
      return absl::InvalidArgumentError(fmt::format("{} is there twice", server.name));
    }
  }
  return servers;
}

void ServerFeed::Publish(ServerSet servers) {
  std::lock_guard<std::mutex> lock(mutex_);
  error_ = absl::OkStatus();
  if (servers_ != nullptr && *servers_ == servers) return;
  VERBENA_LOG_LINE(kNaming, kInfo, fmt::format("{} stands for {} servers", target_, servers.size()),
                   {{"target", target_}});
  servers_ = std::make_shared<const ServerSet>(std::move(servers));
  for (const auto& subscriber : subscribers_) Tell(subscriber);
}

void ServerFeed::PublishError(const absl::Status& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string why = error.ToString();
  if (why.size() > kMostOfAnError) why = why.substr(0, kMostOfAnError) + "...";
  // Whatever it is, it may pass.
  absl::Status unresolved = absl::UnavailableError(
      fmt::format("{} is not resolved{}: {}", target_,
                  servers_ == nullptr ? "" : ", and the last good set of servers stays", why));
  if (unresolved != error_)
    VERBENA_LOG_LINE(kNaming, kWarning, std::string(unresolved.message()), {{"target", target_}});
  error_ = std::move(unresolved);
  for (const auto& subscriber : subscribers_) Tell(subscriber);
}

void ServerFeed::Tell(const std::shared_ptr<FeedSubscriber>& subscriber) {
  if (subscriber->told) return;
  subscriber->told = subscriber->gate->Post(
      [feed = shared_from_this(), subscriber] { feed->Deliver(*subscriber); });
}

void ServerFeed::Deliver(FeedSubscriber& subscriber) {
  std::shared_ptr<const ServerSet> set;
  absl::Status error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    subscriber.told = false;
    set = servers_;
    error = error_;
  }
  if (subscriber.listener != nullptr) subscriber.listener->OnSet(set, error);
}

std::shared_ptr<ServerFeed> ServerFeeds::To(const std::string& target,
                                            absl::FunctionRef<std::shared_ptr<ServerFeed>()> make) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = feeds_.find(target);
  if (found != feeds_.end()) {
    if (std::shared_ptr<ServerFeed> feed = found->second.lock()) return feed;
  }
  absl::erase_if(feeds_, [](const auto& each) { return each.second.expired(); });
  std::shared_ptr<ServerFeed> feed = Alone(make());
  // Why a resolver could not be made may pass.
  if (feed->resolves()) feeds_[target] = feed;
  return feed;
}

std::shared_ptr<ServerFeed> ServerFeeds::Alone(std::shared_ptr<ServerFeed> feed) {
  ServerFeed* const shared = feed.get();
  return {std::make_shared<FeedUse>(std::move(feed)), shared};
}

}  // namespace verbena::internal
