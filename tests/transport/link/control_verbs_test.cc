// Control verbs that take long hold up the link that they are for, and no other.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/device/held_device.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/one_sided_awaits.h"
#include "verbena/transport/link/payload_memory.h"

namespace verbena::internal {
namespace control_verbs_test {

using testing::Contains;
using testing::HasSubstr;
using Verb = HeldDevice::Verb;

class ControlVerbsTest : public LinksFixture {
 protected:
  static constexpr Duration kConnectTimeout = std::chrono::seconds(1000);

  void StartStrict() {
    LinkLimits limits;
    limits.leases.level = LeaseLevel::kStrict;
    limits.connect_timeout = kConnectTimeout;
    Start(limits, limits);
    survivor_ = Connect(survivor_client_, survivor_server_);
    ASSERT_NE(survivor_, nullptr);
  }
  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto held = std::make_unique<HeldDevice>(device);
    held_ = held.get();
    return held;
  }
  HeldDevice& held() { return *held_; }

  void AwaitHeld(Verb verb) {
    PollUntil([&] { return held().waiting(verb) > 0; });
  }
  // While a verb is held up.
  void ExpectThatTheSurvivorServes() {
    const uint32_t before = survivor_server_.received();
    Flood flood(before + 1000, 32, before);
    flood.Run(*survivor_);
    PollUntil([&] { return survivor_server_.received() == before + 1000; });
    EXPECT_TRUE(survivor_->open());
  }

  // The most clients, numbered as they came, that one of them left behind in the order in which
  // they were served.
  static int MostPassed(const std::vector<int>& order) {
    std::vector<bool> served(order.size());
    int most = 0;
    for (int number : order) {
      int passed = 0;
      for (int i = 0; i < number; ++i) passed += served[i] ? 0 : 1;
      most = std::max(most, passed);
      served[number] = true;
    }
    return most;
  }

  Receiver survivor_client_, survivor_server_;
  Receiver client_listener_, server_listener_;
  Link* survivor_ = nullptr;

 private:
  HeldDevice* held_ = nullptr;
};

TEST_F(ControlVerbsTest, OthersServeWhileAQueuePairIsBeingMade) {
  StartStrict();
  held().Hold(Verb::kCreate);
  std::optional<absl::StatusOr<Link*>> link;
  BeginConnect(client_listener_, server_listener_, link);
  AwaitHeld(Verb::kCreate);
  ExpectThatTheSurvivorServes();
  EXPECT_FALSE(link.has_value());
  held().Release(Verb::kCreate);
  PollUntil([&] { return link.has_value() && accepted().has_value(); });
  EXPECT_TRUE(link->ok()) << link->status();
}

// As on RoCE, whose kernel resolves the peer's address inside.
TEST_F(ControlVerbsTest, OthersServeWhileAQueuePairIsBeingConnected) {
  StartStrict();
  held().Hold(Verb::kConnect);
  std::optional<absl::StatusOr<Link*>> link;
  BeginConnect(client_listener_, server_listener_, link);
  AwaitHeld(Verb::kConnect);
  ExpectThatTheSurvivorServes();
  EXPECT_FALSE(link.has_value());
  held().Release(Verb::kConnect);
  PollUntil([&] { return link.has_value() && accepted().has_value(); });
  EXPECT_TRUE(link->ok()) << link->status();
}

TEST_F(ControlVerbsTest, OthersServeWhileALinkIsTornDown) {
  for (Verb verb : {Verb::kToError, Verb::kDeallocWindow, Verb::kDestroy}) {
    if (survivor_ == nullptr) StartStrict();
    Link* link = Connect(client_listener_, server_listener_);
    ASSERT_NE(link, nullptr);
    held().Hold(verb);
    link->Close(absl::CancelledError("the test ends it"));
    AwaitHeld(verb);
    ExpectThatTheSurvivorServes();
    EXPECT_EQ(client().stats().links, 2u);
    held().Release(verb);
    PollUntil([&] { return client().stats().links + server().stats().links == 2; });
  }
}

// A peer that broke a rule takes receives of the endpoint until its queue pair is in ERR.
TEST_F(ControlVerbsTest, AQueuePairGoesToErrWhileAnotherIsBeingDestroyed) {
  StartStrict();
  Receiver other_client, other_server;
  Link* first = Connect(client_listener_, server_listener_);
  Link* second = Connect(other_client, other_server);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  held().Hold(Verb::kDestroy);
  first->Close(absl::CancelledError("the test ends it"));
  AwaitHeld(Verb::kDestroy);
  held().Hold(Verb::kToError);
  second->Close(absl::CancelledError("the test ends it, too"));
  AwaitHeld(Verb::kToError);
  held().Release(Verb::kToError);
  held().Release(Verb::kDestroy);
  PollUntil([&] { return client().stats().links + server().stats().links == 2; });
}

TEST_F(ControlVerbsTest, NoControlVerbRunsOnTheExecutorsThread) {
  StartStrict();
  Buffer buffer = *client().memory().send().TryAllocate(4096);
  held().WatchThisThread();
  for (int i = 0; i < 3; ++i) {
    Link* link = Connect(client_listener_, server_listener_);
    ASSERT_NE(link, nullptr);
    // More than the windows that a link begins with.
    for (int leases = 0; leases < 40; ++leases) {
      PollUntil([&] { return link->free_leases() > 0; });
      absl::StatusOr<Lease*> lease = link->OpenLease(buffer.view(), LeaseAccess::kRead);
      ASSERT_TRUE(lease.ok() && *lease != nullptr) << lease.status();
    }
    link->Close(absl::CancelledError("the test ends it"));
    PollUntil([&] { return client().stats().links + server().stats().links == 2; });
  }
  buffer.Reset();
  RunToEnd(client().Shutdown());
  RunToEnd(server().Shutdown());
  EXPECT_EQ(held().calls_of_this_thread(), 0);
  EXPECT_EQ(held().calls(Verb::kDestroy), 8);
  EXPECT_GE(held().calls(Verb::kDeallocWindow), 3 * 40);
  EXPECT_EQ(held().calls(Verb::kDeallocWindow), held().calls(Verb::kAllocWindow));
}

// Counts posts to send queues in ERR. One exists at a time.
class PostsInError {
 public:
  explicit PostsInError(Device& device) : device_(device) {
    executor_ = std::this_thread::get_id();
    here_ = elsewhere_ = 0;
    post_ = device.context()->ops.post_send;
    device.context()->ops.post_send = [](ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
      if (qp->state == IBV_QPS_ERR)
        ++(std::this_thread::get_id() == executor_ ? here_ : elsewhere_);
      return post_(qp, request, bad);
    };
  }
  PostsInError(const PostsInError&) = delete;
  PostsInError& operator=(const PostsInError&) = delete;
  ~PostsInError() { device_.context()->ops.post_send = post_; }

  int here() const { return here_; }
  int elsewhere() const { return elsewhere_; }

 private:
  inline static std::thread::id executor_;
  inline static std::atomic<int> here_, elsewhere_;
  inline static int (*post_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  Device& device_;
};

// On some devices each costs a command of the firmware.
TEST_F(ControlVerbsTest, NothingIsPostedInErrOnTheExecutorsThread) {
  StartStrict();
  Flood flood(5, 32, 0);
  flood.Run(*survivor_);
  PollUntil([&] { return survivor_server_.received() == 5; });
  const PostsInError posts(held());
  survivor_->Close(absl::CancelledError("the test ends it"));
  PollUntil([&] { return client().stats().links + server().stats().links == 0; });
  EXPECT_EQ(posts.here(), 0);
  EXPECT_GT(posts.elsewhere(), 0);
}

TEST_F(ControlVerbsTest, AHandshakeWhoseTimeIsOverCostsNoControlVerb) {
  StartStrict();
  held().Hold(Verb::kCreate);
  std::optional<absl::StatusOr<Link*>> first, second;
  BeginConnect(client_listener_, server_listener_, first);
  AwaitHeld(Verb::kCreate);
  BeginConnect(client_listener_, server_listener_, second);
  PollUntil([&] { return first.has_value() && second.has_value(); },
            [&] { clock().Advance(kConnectTimeout); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(first->status())) << first->status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(second->status())) << second->status();
  const int calls = held().calls(Verb::kCreate);
  held().Release(Verb::kCreate);
  RunToEnd(client().Shutdown());
  RunToEnd(server().Shutdown());
  EXPECT_EQ(held().calls(Verb::kCreate), calls) << "what was given up is not begun";
  EXPECT_EQ(held().calls(Verb::kDestroy), held().calls(Verb::kCreate));
}

// The queues that it is made of are the endpoint's.
TEST_F(ControlVerbsTest, AnEndpointOutlivesTheQueuePairsThatAreBeingMadeForIt) {
  StartStrict();
  held().Hold(Verb::kCreate);
  std::optional<absl::StatusOr<Link*>> link;
  BeginConnect(client_listener_, server_listener_, link);
  AwaitHeld(Verb::kCreate);
  PollUntil([&] { return link.has_value(); }, [&] { clock().Advance(kConnectTimeout); });
  bool down = false;
  Spawn(executor(), [](Endpoint& endpoint, bool& down) -> Task<void> {
    co_await endpoint.Shutdown();
    down = true;
  }(client(), down));
  for (int i = 0; i < 1000; ++i) executor().Poll();
  EXPECT_FALSE(down);
  held().Release(Verb::kCreate);
  PollUntil([&] { return down; });
}

TEST_F(ControlVerbsTest, RegisteringAUsersMemoryHoldsUpNoLink) {
  StartStrict();
  std::vector<char> memory(1 << 20);
  held().Hold(Verb::kRegister);
  held().WatchThisThread();
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> registered;
  bool ended = false;
  auto use = [&]() -> Task<void> {
    registered = co_await RegisterMemory(device_context(), memory.data(), memory.size(), 0);
    co_await DeregisterMemory(device_context(), *std::move(registered));
    ended = true;
  };
  TaskScope scope(executor());
  scope.Spawn(use);
  AwaitHeld(Verb::kRegister);
  ExpectThatTheSurvivorServes();
  // Nor a link that is being made.
  ASSERT_NE(Connect(client_listener_, server_listener_), nullptr);
  EXPECT_FALSE(ended);
  held().Release(Verb::kRegister);
  PollUntil([&] { return ended; });
  EXPECT_EQ(held().calls_of_this_thread(), 0);
}

class CountingRegistrar final : public RegionRegistrar {
 public:
  void OnRegionGone(MemoryRegion& /*region*/) override { ++gone_; }
  int gone() const { return gone_; }

 private:
  int gone_ = 0;
};

// The caller breaks the precondition. Were the memory destroyed on a control thread, it would still
// be in the ring of its home when its Buffer has come home, and the process would abort.
TEST_F(ControlVerbsTest, AUsersMemoryInUseIsDestroyedOnItsHomesThread) {
  // Registered for the life of the process.
  static std::vector<char> memory(1 << 20);
  static CountingRegistrar ring;
  StartStrict();
  std::vector<char> other(1 << 20);
  std::unique_ptr<RegisteredMemory> registered =
      RegisteredMemory::Register(device_context().device(), device_context().pd(), memory.data(),
                                 memory.size(), 0, &executor())
          .value();
  const_cast<MemoryRegion&>(registered->region()).SetRegistrar(&ring, 0);
  std::optional<Buffer> used = registered->Wrap(0, 4096).value();
  held().Hold(Verb::kRegister);
  int ended = 0;
  auto occupy_control_thread = [&]() -> Task<void> {
    absl::StatusOr<std::unique_ptr<RegisteredMemory>> also =
        co_await RegisterMemory(device_context(), other.data(), other.size(), 0);
    co_await DeregisterMemory(device_context(), *std::move(also));
    ++ended;
  };
  auto deregister = [&]() -> Task<void> {
    co_await DeregisterMemory(device_context(), std::move(registered));
    ++ended;
  };
  TaskScope scope(executor());
  scope.Spawn(occupy_control_thread);
  AwaitHeld(Verb::kRegister);
  CapturedLog log;
  scope.Spawn(deregister);
  PollUntil([&] { return registered == nullptr; });
  used.reset();
  held().Release(Verb::kRegister);
  PollUntil([&] { return ended == 2; });
  EXPECT_THAT(log.Take(), Contains(HasSubstr("while 1 buffers of it were in use")));
  EXPECT_EQ(ring.gone(), 0);
}

// All clients come back at once. Each is served in its turn, and links that are there stay. A
// client passes at most as many earlier ones as the threads of each step can hold up. The steps:
// the client's queue pair is made, then the server's, then each is connected.
TEST_F(ControlVerbsTest, AReconnectStormIsServedInOrderAndNoSurvivorIsLost) {
  constexpr int kClients = 1000;
  constexpr ControlPool::Options kPool;
  constexpr int kMaxPassed = 2 * (kPool.connect_threads - 1) + 2 * (kPool.resolve_threads - 1);
  StartStrict();
  std::vector<Receiver> listeners(2 * kClients);
  std::vector<Link*> links;
  for (int round = 0; round < 2; ++round) {
    std::vector<int> order;
    links.clear();
    TaskScope scope(executor());
    auto connect = [&](int number) -> Task<void> {
      absl::StatusOr<Link*> link =
          co_await ConnectBoth(listeners[2 * number], listeners[2 * number + 1]);
      EXPECT_TRUE(link.ok()) << link.status();
      order.push_back(number);
      if (link.ok()) links.push_back(*link);
    };
    held().Hold(Verb::kCreate);
    for (int i = 0; i < kClients; ++i) {
      scope.Spawn(connect(i));
      // A listener holds as many that nobody has accepted.
      if (i % LocalNetwork::kBacklog == LocalNetwork::kBacklog - 1) executor().Poll();
    }
    AwaitHeld(Verb::kCreate);
    ExpectThatTheSurvivorServes();
    held().Release(Verb::kCreate);
    PollUntil([&] { return order.size() == kClients; });
    ExpectThatTheSurvivorServes();
    EXPECT_LE(MostPassed(order), kMaxPassed);
    EXPECT_EQ(client().stats().links, kClients + 1u);
    EXPECT_EQ(server().stats().links, kClients + 1u);
    for (Link* link : links) {
      EXPECT_TRUE(link->open());
      link->Close(absl::UnavailableError("the test loses it"));
    }
    PollUntil([&] { return client().stats().links + server().stats().links == 2; });
  }
  ExpectThatTheSurvivorServes();
}

}  // namespace control_verbs_test
}  // namespace verbena::internal
