// A registrar keeps a server's key in etcd under a lease, brings it back when it is lost, and takes
// it away in the end.

#include "verbena/rpc/naming/etcd/directory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "tests/rpc/naming/etcd/fake_etcd.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/client.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace {

using std::chrono::seconds;

class EtcdRegistrarTest : public ::testing::Test {
 protected:
  ~EtcdRegistrarTest() override { Stop(); }

  void Start() {
    scope_.Spawn(registrar_.Run());
    scheduler_.RunUntilIdle();
  }
  void Stop() {
    scope_.RequestCancel();
    scheduler_.RunUntilIdle();
    EXPECT_EQ(scope_.size(), 0u);
  }
  bool there() const { return !etcd_.keys.empty(); }

  ManualScheduler scheduler_;
  FakeEtcd etcd_;
  EtcdRegistrar registrar_{EtcdCore::MakeClient(etcd_.Wire()), "s/a", R"({"x":1})", seconds(9),
                           Random::Real()};
  TaskScope scope_{scheduler_};
};

TEST_F(EtcdRegistrarTest, PutsTheKeyUnderALeaseThatItKeepsAlive) {
  Start();
  EXPECT_TRUE(there());
  EXPECT_TRUE(registrar_.registered());
  EXPECT_NE(etcd_.last_body.find(R"("lease":"1")"), std::string::npos) << etcd_.last_body;
  scheduler_.AdvanceBy(seconds(90));
  // About three times in each time to live.
  EXPECT_GE(etcd_.Count("/v3/lease/keepalive"), 25);
  EXPECT_LE(etcd_.Count("/v3/lease/keepalive"), 37);
  EXPECT_EQ(etcd_.leases, 1);
}

TEST_F(EtcdRegistrarTest, RegistersAgainWhenItsLeaseHasEnded) {
  Start();
  etcd_.lease_alive = false;
  etcd_.keys.clear();
  scheduler_.AdvanceBy(seconds(4));
  EXPECT_TRUE(there());
  EXPECT_EQ(etcd_.leases, 2);
  EXPECT_TRUE(registrar_.registered());
}

TEST_F(EtcdRegistrarTest, PutsAKeyAgainThatSomebodyDeleted) {
  Start();
  etcd_.keys.clear();
  scheduler_.AdvanceBy(seconds(4));
  EXPECT_TRUE(there());
  EXPECT_EQ(etcd_.leases, 1);
}

TEST_F(EtcdRegistrarTest, RegistersWhenEtcdIsThere) {
  etcd_.gone = true;
  Start();
  EXPECT_FALSE(registrar_.registered());
  scheduler_.AdvanceBy(seconds(30));
  // With pauses of 2 s at most, and not without any.
  EXPECT_GT(etcd_.Count("/v3/lease/grant"), 10);
  EXPECT_LT(etcd_.Count("/v3/lease/grant"), 40);
  etcd_.gone = false;
  scheduler_.AdvanceBy(seconds(3));
  EXPECT_TRUE(there());
  EXPECT_TRUE(registrar_.registered());
}

TEST_F(EtcdRegistrarTest, AShortLossOfEtcdCostsNoLease) {
  Start();
  etcd_.gone = true;
  scheduler_.AdvanceBy(seconds(5));
  etcd_.gone = false;
  scheduler_.AdvanceBy(seconds(5));
  EXPECT_EQ(etcd_.leases, 1);
  EXPECT_GT(etcd_.Count("/v3/lease/keepalive"), 2);
  EXPECT_TRUE(registrar_.registered());
}

TEST_F(EtcdRegistrarTest, IsNotRegisteredOnceItsLeaseMustHaveEnded) {
  Start();
  etcd_.gone = true;
  scheduler_.AdvanceBy(seconds(9));
  EXPECT_TRUE(registrar_.registered()) << "etcd has granted 10 s";
  scheduler_.AdvanceBy(seconds(10));
  EXPECT_FALSE(registrar_.registered());
  etcd_.gone = false;
  scheduler_.AdvanceBy(seconds(3));
  EXPECT_TRUE(registrar_.registered());
  EXPECT_EQ(etcd_.leases, 1) << "etcd has kept it";
}

TEST_F(EtcdRegistrarTest, IsNotRegisteredWhileAnotherServerHasItsName) {
  CapturedLog log;
  Start();
  etcd_.holder = 99;
  scheduler_.AdvanceBy(seconds(30));
  EXPECT_FALSE(registrar_.registered());
  int warnings = 0;
  for (const std::string& line : log.Take()) {
    if (line.find("somebody else has put s/a") != std::string::npos) ++warnings;
  }
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(etcd_.leases, 1);
  // The other one has gone.
  etcd_.keys.clear();
  scheduler_.AdvanceBy(seconds(4));
  EXPECT_TRUE(registrar_.registered());
  EXPECT_TRUE(there());
}

TEST(RegistrationTimeoutTest, ASilentMemberCostsNoLeaseHoweverShort) {
  for (const Duration ttl : {seconds(2), seconds(3), seconds(10), seconds(600)}) {
    ManualScheduler scheduler;
    FakeEtcd etcd;
    EtcdRegistrar registrar(EtcdCore::MakeClient(etcd.Wire()), "s/a", "{}", ttl, Random::Real());
    TaskScope scope(scheduler);
    scope.Spawn(registrar.Run());
    scheduler.RunUntilIdle();
    const TimePoint lease_end = scheduler.now() + ttl;
    etcd.mute = true;
    while (etcd.unanswered.empty()) scheduler.AdvanceTo(scheduler.next_timer());
    scheduler.AdvanceBy(RegistrationTimeout(ttl));
    etcd.mute = false;
    etcd.unanswered.front()->Fail("no answer", true);
    while (etcd.Count("/v3/lease/keepalive") < 2 && scheduler.now() < lease_end) {
      scheduler.AdvanceBy(ttl / 100);
    }
    EXPECT_LT(scheduler.now(), lease_end) << ttl.count() << " ns";
    scope.RequestCancel();
    scheduler.RunUntilIdle();
  }
}

TEST_F(EtcdRegistrarTest, ServersThatBeganTogetherDoNotStayInStep) {
  SeededRandom other_random(1);
  EtcdRegistrar other(EtcdCore::MakeClient(etcd_.Wire()), "s/b", "{}", seconds(9), other_random);
  scope_.Spawn(other.Run());
  Start();
  int together = 0;
  for (int before = 0; etcd_.Count("/v3/lease/keepalive") < 20;) {
    scheduler_.AdvanceTo(scheduler_.next_timer());
    const int now = etcd_.Count("/v3/lease/keepalive");
    if (now - before > 1) ++together;
    before = now;
  }
  EXPECT_EQ(together, 0);
  Stop();  // before `other` goes
}

TEST_F(EtcdRegistrarTest, GarbageIsTriedAgain) {
  etcd_.answer = R"({"header":{"revision":"1"},"ID":"7","TTL":"99999999999999"})";
  Start();
  EXPECT_FALSE(registrar_.registered());
  etcd_.answer.clear();
  scheduler_.AdvanceBy(seconds(3));
  EXPECT_TRUE(registrar_.registered());
}

TEST_F(EtcdRegistrarTest, RemovesItsKeyWithTheLease) {
  Start();
  Stop();
  EXPECT_EQ(scheduler_.Run(registrar_.Remove()), absl::OkStatus());
  EXPECT_FALSE(there());
  EXPECT_FALSE(etcd_.lease_alive);
  EXPECT_FALSE(registrar_.registered());
}

TEST_F(EtcdRegistrarTest, RemovesNothingIfItNeverRegistered) {
  etcd_.gone = true;
  Start();
  Stop();
  EXPECT_EQ(scheduler_.Run(registrar_.Remove()), absl::OkStatus());
  EXPECT_EQ(etcd_.Count("/v3/lease/revoke"), 0);
}

TEST_F(EtcdRegistrarTest, SaysThatItsKeyStaysIfEtcdIsGone) {
  Start();
  Stop();
  etcd_.gone = true;
  EXPECT_TRUE(absl::IsUnavailable(scheduler_.Run(registrar_.Remove())));
}

}  // namespace
}  // namespace verbena::internal
