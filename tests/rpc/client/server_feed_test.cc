// The channels of a runtime to one target share a resolver, which runs until the last of them is
// gone, whichever came first.

#include "verbena/rpc/client/server_feed.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/server_set.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/testing/fake_clock.h"

namespace verbena::internal {
namespace server_feed_test {

// CountingListener notes what one executor of a channel hears. It lives on that executor, and is
// read while that is idle.
class CountingListener final : public FeedListener {
 public:
  void OnSet(const std::shared_ptr<const ServerSet>& set, const absl::Status&) override {
    if (set != nullptr) servers = set->size();
  }

  size_t servers = 0;
};

class ServerFeedTest : public RuntimePair {
 protected:
  ServerFeedTest() { client_runtime_ = StartRuntime({.clock = &clock_}); }
  ~ServerFeedTest() override {
    clock_.Run();
    client_runtime_.reset();
  }

  std::shared_ptr<ServerFeed> FeedOf(const std::string& target) {
    return feeds_.To(target, [&] {
      ++made_;
      resolver_ = std::make_shared<FakeResolver>();
      return std::make_shared<ServerFeed>(target, resolver_);
    });
  }
  std::shared_ptr<FeedSubscriber> Subscribe(ServerFeed& feed, FeedListener& listener) {
    auto subscriber = std::make_shared<FeedSubscriber>(FeedSubscriber{
        .listener = &listener, .gate = Connections::Of(CoreOf(*client_runtime_).shard(0)).gate()});
    EXPECT_EQ(Run(SubscribeHere(feed, subscriber)), absl::OkStatus());
    return subscriber;
  }
  void Unsubscribe(ServerFeed& feed, std::shared_ptr<FeedSubscriber> subscriber) {
    EXPECT_EQ(Run(UnsubscribeHere(feed, std::move(subscriber))), absl::OkStatus());
  }
  // The resolver says that there are so many servers, and the feed's pause after a set passes.
  void TellServers(int count) {
    std::vector<ResolvedServer> servers;
    for (int i = 1; i <= count; ++i) {
      servers.push_back({.addresses = {"server:" + std::to_string(i)}});
    }
    resolver_->Tell(*client_runtime_, std::move(servers));
    clock_.Advance(*client_runtime_, std::chrono::milliseconds(100));
  }

  testing::FakeClock clock_;
  ServerFeeds feeds_;
  std::shared_ptr<FakeResolver> resolver_;  // the last that was made
  int made_ = 0;

 private:
  Task<absl::Status> SubscribeHere(ServerFeed& feed, std::shared_ptr<FeedSubscriber> subscriber) {
    feed.Subscribe(subscriber, CoreOf(*client_runtime_).shard(0));
    co_return absl::OkStatus();
  }
  Task<absl::Status> UnsubscribeHere(ServerFeed& feed, std::shared_ptr<FeedSubscriber> subscriber) {
    feed.Unsubscribe(subscriber);
    co_return absl::OkStatus();
  }
};

TEST_F(ServerFeedTest, AllWhoAskForATargetShareAFeedUntilTheLastHasDroppedIt) {
  std::shared_ptr<ServerFeed> one = FeedOf("set");
  std::shared_ptr<ServerFeed> other = FeedOf("set");
  EXPECT_EQ(one, other);
  EXPECT_NE(one, FeedOf("another set"));
  EXPECT_EQ(made_, 2);
  one.reset();
  EXPECT_EQ(FeedOf("set"), other);
  other.reset();
  EXPECT_NE(FeedOf("set"), nullptr);
  EXPECT_EQ(made_, 3);
}

TEST_F(ServerFeedTest, AChannelToASetTakesTheFeedOfItsRuntime) {
  const std::string target = "static:a:1,b:1";
  const Channel channel(*client_runtime_, target);
  bool made = false;
  const std::shared_ptr<ServerFeed> feed =
      CoreOf(*client_runtime_).parts().Get<ServerFeeds>().To(target, [&made] {
        made = true;
        return std::make_shared<ServerFeed>("not shared", absl::UnknownError(""));
      });
  EXPECT_FALSE(made);
}

TEST_F(ServerFeedTest, AFeedThatHasNoResolverIsNotShared) {
  const std::shared_ptr<ServerFeed> failed = feeds_.To(
      "set", [] { return std::make_shared<ServerFeed>("set", absl::UnavailableError("not now")); });
  const std::shared_ptr<ServerFeed> feed = FeedOf("set");
  EXPECT_NE(feed, failed);
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(FeedOf("set"), feed);
}

TEST_F(ServerFeedTest, ANewChannelDoesNotWaitForThePauseAfterAnError) {
  const std::shared_ptr<ServerFeed> feed = FeedOf("set");
  CountingListener first;
  CountingListener second;
  std::shared_ptr<FeedSubscriber> one = Subscribe(*feed, first);
  resolver_->Tell(*client_runtime_, absl::UnavailableError("not now"));
  clock_.Advance(*client_runtime_, Duration::zero());
  resolver_->Tell(*client_runtime_, std::vector<ResolvedServer>{{.addresses = {"server:1"}}});
  clock_.Advance(*client_runtime_, Duration::zero());
  EXPECT_EQ(first.servers, 0u) << "the pause";
  std::shared_ptr<FeedSubscriber> other = Subscribe(*feed, second);
  clock_.Advance(*client_runtime_, Duration::zero());
  EXPECT_EQ(first.servers, 1u);
  EXPECT_EQ(second.servers, 1u);
  Unsubscribe(*feed, std::move(one));
  Unsubscribe(*feed, std::move(other));
}

TEST_F(ServerFeedTest, TheResolverGoesOnWhenTheFirstChannelIsGone) {
  std::shared_ptr<ServerFeed> first = FeedOf("set");
  const std::shared_ptr<ServerFeed> second = FeedOf("set");
  CountingListener leaves;
  CountingListener stays;
  std::shared_ptr<FeedSubscriber> leaving = Subscribe(*first, leaves);
  const std::shared_ptr<FeedSubscriber> staying = Subscribe(*second, stays);
  TellServers(1);
  EXPECT_EQ(leaves.servers, 1u);
  Unsubscribe(*first, std::move(leaving));
  first.reset();
  TellServers(2);
  EXPECT_EQ(stays.servers, 2u);
  EXPECT_EQ(leaves.servers, 1u);
  Unsubscribe(*second, staying);
}

TEST_F(ServerFeedTest, TheResolverEndsWithTheLastChannel) {
  std::shared_ptr<ServerFeed> feed = FeedOf("set");
  std::shared_ptr<ServerFeed> last = FeedOf("set");
  CountingListener listener;
  std::shared_ptr<FeedSubscriber> subscriber = Subscribe(*feed, listener);
  TellServers(1);
  const std::weak_ptr<FakeResolver> resolver = resolver_;
  resolver_.reset();
  Unsubscribe(*feed, std::move(subscriber));
  feed.reset();
  clock_.Advance(*client_runtime_, std::chrono::seconds(1));
  EXPECT_FALSE(resolver.expired());
  last.reset();
  clock_.Advance(*client_runtime_, std::chrono::seconds(1));
  EXPECT_TRUE(resolver.expired());
}

}  // namespace server_feed_test
}  // namespace verbena::internal
