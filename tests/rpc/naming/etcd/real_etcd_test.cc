// With a real etcd: servers register and leave, channels follow them and outlast etcd's absence,
// and transactions, leases and watches do what rpc/etcd.h says.
//
// real_etcd_test.sh starts the etcd. Without one each case is skipped.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/server_set.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"

namespace verbena {
namespace {

using std::chrono::seconds;

class RealEtcdTest : public ServerSetTest {
 protected:
  void SetUp() override {
    const char* address = std::getenv("VERBENA_ETCD");
    if (address == nullptr) GTEST_SKIP() << "no etcd: the package etcd-server cannot be had";
    address_ = address;
    client_runtime_ = StartRuntime({});
    etcd_ = *EtcdClient::Start({.endpoints = {address_}, .timeout = seconds(20)});
  }

  template <typename T>
  T Do(Task<T> task) {
    return client_runtime_->BlockOn(std::move(task));
  }
  // A prefix of this case's own.
  static std::string Prefix() {
    return std::string("test/") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  std::string EtcdTarget() const { return "etcd://" + address_ + "/" + Prefix(); }

  void StartRegistered(const std::string& name) {
    if (server_runtime_ == nullptr) server_runtime_ = StartRuntime({});
    members_.push_back(std::make_unique<Member>());
    Member& member = *members_.back();
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(*server_runtime_, {&member.service, &member.streams},
                      {.address = member.port.address(),
                       .registration = {.target = EtcdTarget(),
                                        .name = name,
                                        .zone = "z",
                                        .weight = 2,
                                        // No key goes by itself while the tests run.
                                        .ttl = std::chrono::minutes(10)}});
    ASSERT_TRUE(server.ok()) << server.status();
    member.server = *std::move(server);
  }

  std::string address_;
  std::unique_ptr<EtcdClient> etcd_;
};

TEST_F(RealEtcdTest, TransactionsCompareBeforeTheyChange) {
  const std::string key = Prefix() + "/epoch";
  const auto first = Do(etcd_->Commit(EtcdTxn().IfAbsent(key).Put(key, "1")));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->succeeded);
  const auto second = Do(etcd_->Commit(EtcdTxn().IfAbsent(key).Put(key, "2").OrGet(key)));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE(second->succeeded);
  ASSERT_EQ(second->read.size(), 1u);
  EXPECT_EQ(second->read[0].value, "1");
  const int64_t seen = second->read[0].mod_revision;
  const auto third = Do(etcd_->Commit(
      EtcdTxn().IfModRevision(key, seen).IfValue(key, "1").IfLease(key, 0).Put(key, "3").Delete(
          key + "/none")));
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_TRUE(third->succeeded);
  const auto late = Do(etcd_->Commit(EtcdTxn().IfModRevision(key, seen).Delete(key)));
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->succeeded);
  const auto read = Do(etcd_->Get(key));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->entries.size(), 1u);
  EXPECT_EQ(read->entries[0].value, "3");
  EXPECT_EQ(read->entries[0].version, 2);
}

TEST_F(RealEtcdTest, AKeyGoesWithItsLeaseAndTheWatchTells) {
  const std::string prefix = Prefix() + "/";
  const auto before = Do(etcd_->List(prefix));
  ASSERT_TRUE(before.ok()) << before.status();
  const auto watch = etcd_->Watch(prefix, before->revision + 1);
  const auto lease = Do(etcd_->GrantLease(seconds(30)));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->ttl, seconds(30));
  ASSERT_TRUE(Do(etcd_->Commit(EtcdTxn().Put(prefix + "a", "x", lease->id))).ok());
  EXPECT_TRUE(Do(etcd_->KeepAlive(lease->id)).ok());
  const auto newest = Do(etcd_->Newest(prefix));
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->count, 1);
  EXPECT_EQ(newest->entries[0].lease, lease->id);
  EXPECT_EQ(newest->entries[0].value, "");
  EXPECT_EQ(Do(etcd_->Revoke(lease->id)), absl::OkStatus());
  std::vector<EtcdEvent> events;
  while (events.size() < 2) {
    const auto changes = Do(watch->Next());
    ASSERT_TRUE(changes.ok()) << changes.status();
    for (const EtcdEvent& each : changes->events) events.push_back(each);
  }
  EXPECT_EQ(events[0].entry.value, "x");
  EXPECT_FALSE(events[0].deleted);
  EXPECT_TRUE(events[1].deleted);
  for (const absl::Status& ended :
       {Do(etcd_->Revoke(lease->id)), Do(etcd_->KeepAlive(lease->id)).status(),
        Do(etcd_->Commit(EtcdTxn().Put(prefix + "a", "x", lease->id))).status()}) {
    EXPECT_TRUE(absl::IsNotFound(ended)) << ended;
    EXPECT_EQ(OutcomeOf(ended), Outcome::kNotExecuted);
  }
}

TEST_F(RealEtcdTest, ChannelsFollowServersThatRegisterAndLeave) {
  StartRegistered("a");
  StartClient(EtcdTarget());
  ASSERT_EQ(Run(Echo({.deadline = seconds(30), .wait_for_ready = true})), absl::OkStatus());
  StartRegistered("b");
  AwaitReady(2);
  EXPECT_EQ(Servers()[1].server.name, "b");
  EXPECT_EQ(Servers()[1].server.zone, "z");
  EXPECT_EQ(Servers()[1].server.weight, 2u);
  // The channel may hear of the key before the server does.
  Eventually([&] { return members_[1]->server->stats().registered; }, "b knows that it is there");
  TakeEchoes();
  EchoOften(10);
  EXPECT_EQ(TakeEchoes(), (std::vector<uint64_t>{5, 5}));
  members_[0]->server->Shutdown(Duration::zero());
  // Shutdown() waits only a moment for etcd to remove the key.
  absl::StatusOr<EtcdRange> left;
  Eventually(
      [&] {
        left = Do(etcd_->List(Prefix() + "/"));
        return left.ok() && left->entries.size() == 1;
      },
      "the key is removed");
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->entries[0].key, Prefix() + "/b");
  Eventually([&] { return Servers().size() == 1; }, "the channel has heard");
  EchoOften(10);
}

TEST_F(RealEtcdTest, TheLastGoodSetStaysWhileEtcdIsStopped) {
  StartRegistered("a");
  StartClient(EtcdTarget());
  ASSERT_EQ(Run(Echo({.deadline = seconds(30), .wait_for_ready = true})), absl::OkStatus());
  const pid_t etcd = std::atoi(std::getenv("VERBENA_ETCD_PID"));
  ASSERT_GT(etcd, 1);
  ASSERT_EQ(kill(etcd, SIGSTOP), 0);
  EchoOften(10);
  EXPECT_EQ(Servers().size(), 1u);
  members_[0]->server->Shutdown(Duration::zero());
  ASSERT_EQ(kill(etcd, SIGCONT), 0);
}

}  // namespace
}  // namespace verbena
