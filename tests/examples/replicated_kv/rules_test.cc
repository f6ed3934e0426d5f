// The rules of the replicated store, one by one: who may become primary, how long a lease holds,
// and which epochs a backup takes.

#include <time.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/epoch_gate.h"
#include "examples/replicated_kv/lease_term.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/shard_state.h"
#include "examples/replicated_kv/succession.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {
namespace rules_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using verbena::ManualClock;
using verbena::TimePoint;

// --- The shard's state.

TEST(ShardStateTest, ItsTextGivesItBack) {
  const ShardState state{.epoch = 7,
                         .primary = "s2",
                         .in_sync = {"s1", "s2"},
                         .committed = {.epoch = 6, .sequence = 1234}};
  EXPECT_EQ(ShardStateText(state), "epoch 7 primary s2 in_sync s1,s2 committed 6:1234");
  const absl::StatusOr<ShardState> read = ParseShardState(ShardStateText(state));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, state);
}

TEST(ShardStateTest, ALineOfBeforeKnowsNothingToBeCommitted) {
  const absl::StatusOr<ShardState> read = ParseShardState("epoch 7 primary s2 in_sync s1,s2");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->committed, LogPosition());
}

TEST(ShardStateTest, TheFirstStateHasNoPrimary) {
  const ShardState first = FirstState({"s3", "s1", "s2"});
  EXPECT_EQ(first.in_sync, (std::vector<std::string>{"s1", "s2", "s3"}));
  const absl::StatusOr<ShardState> read = ParseShardState(ShardStateText(first));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, first);
}

TEST(ShardStateTest, RefusesTextThatIsNoState) {
  for (const std::string text :
       {"", "epoch", "epoch 0 primary a in_sync a", "epoch x primary a in_sync a",
        "epoch 2 primary c in_sync a,b", "epoch 2 primary a in_sync a,,b",
        "epoch 2 primary a in_sync a b", "epoch 2 primary a in_sync a committed",
        "epoch 2 primary a in_sync a committed 1", "epoch 2 primary a in_sync a committed 3:1",
        "epoch 2 primary a in_sync a committed 1:-1", "epoch 2 primary a in_sync a commit 1:1",
        "epoch 2 primary a in_sync a/b", "epoch 2 primary a in_sync a,b,c,d,e,f,g,h"}) {
    EXPECT_EQ(ParseShardState(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ShardStateTest, OnlyAReplicaInSyncMayLead) {
  const ShardState state{.epoch = 7, .primary = "s2", .in_sync = {"s1", "s2"}};
  EXPECT_TRUE(MayLead(state, "s1", {}));
  EXPECT_FALSE(MayLead(state, "s3", {}));
  EXPECT_FALSE(MayLead(Without(state, "s1"), "s1", {}));
  EXPECT_TRUE(MayLead(With(state, "s3"), "s3", {}));
}

// Its disk has lost what it had synced, or is an older copy.
TEST(ShardStateTest, AReplicaWithoutWhatWasCommittedMayNotLead) {
  const ShardState state{.epoch = 7,
                         .primary = "s2",
                         .in_sync = {"s1", "s2"},
                         .committed = {.epoch = 6, .sequence = 100}};
  EXPECT_FALSE(MayLead(state, "s1", {.epoch = 6, .sequence = 99}));
  EXPECT_FALSE(MayLead(state, "s1", {.epoch = 5, .sequence = 200}));
  EXPECT_TRUE(MayLead(state, "s1", {.epoch = 6, .sequence = 100}));
  EXPECT_TRUE(MayLead(state, "s1", {.epoch = 7, .sequence = 101}));
  EXPECT_FALSE(MayLead(TakenOver(state, "s2"), "s1", {.epoch = 6, .sequence = 99}));
}

TEST(ShardStateTest, ANewPrimaryHasAnEpochOfItsOwn) {
  const ShardState state{.epoch = 7, .primary = "s2", .in_sync = {"s1", "s2"}};
  const ShardState next = TakenOver(state, "s1");
  EXPECT_EQ(next.epoch, 8u);
  EXPECT_EQ(next.primary, "s1");
  EXPECT_EQ(next.in_sync, state.in_sync);
  EXPECT_EQ(Without(state, "s1").epoch, 7u);
}

TEST(ShardStateTest, AReplicaIsInTheSetOnce) {
  const ShardState state{.epoch = 7, .primary = "s2", .in_sync = {"s1", "s2"}};
  EXPECT_EQ(With(state, "s1"), state);
}

TEST(LogPositionTest, TheLaterEpochIsAhead) {
  EXPECT_GT((LogPosition{.epoch = 3, .sequence = 1}), (LogPosition{.epoch = 2, .sequence = 9}));
  EXPECT_GT((LogPosition{.epoch = 3, .sequence = 2}), (LogPosition{.epoch = 3, .sequence = 1}));
}

// --- Succession.

constexpr Rivals kNone;
constexpr Rivals kLonger{.longer = true, .first = true};
constexpr Rivals kNameBefore{.first = true};
constexpr Rivals kSilent{.silent = true};

TEST(SuccessionTest, AReplicaThatHeardOfAPrimaryLetsALongerLogGoFirstForAMoment) {
  ManualClock clock;
  Succession succession;
  EXPECT_TRUE(succession.MayGo(1, kNone, /*tested=*/true, clock.Now()));
  EXPECT_TRUE(succession.MayGo(2, kSilent, /*tested=*/true, clock.Now()));
  EXPECT_FALSE(succession.MayGo(3, kLonger, /*tested=*/true, clock.Now()));
  clock.Advance(kDeference);
  EXPECT_TRUE(succession.MayGo(3, kLonger, /*tested=*/true, clock.Now()));
  EXPECT_FALSE(succession.MayGo(4, kLonger, /*tested=*/true, clock.Now())) << "another time";
}

TEST(SuccessionTest, AReplicaThatHasJustStartedWaitsForTheSilent) {
  ManualClock clock;
  Succession succession;
  EXPECT_FALSE(succession.MayGo(1, kSilent, /*tested=*/false, clock.Now()));
  clock.Advance(kRestartPatience - milliseconds(1));
  EXPECT_FALSE(succession.MayGo(1, kSilent, /*tested=*/false, clock.Now()));
  EXPECT_TRUE(succession.MayGo(1, kNone, /*tested=*/false, clock.Now())) << "all have answered";
  clock.Advance(milliseconds(1));
  EXPECT_TRUE(succession.MayGo(1, kSilent, /*tested=*/false, clock.Now()));
}

TEST(SuccessionTest, AReplicaThatHasJustStartedNeverGoesBeforeALongerLog) {
  ManualClock clock;
  Succession succession;
  EXPECT_FALSE(succession.MayGo(1, kLonger, /*tested=*/false, clock.Now()));
  clock.Advance(10 * kRestartPatience);
  EXPECT_FALSE(succession.MayGo(1, kLonger, /*tested=*/false, clock.Now()));
  EXPECT_TRUE(succession.MayGo(1, kNameBefore, /*tested=*/false, clock.Now()));
}

// --- The lease.

TEST(BootClockTest, IsTheTimeSinceTheMachineStarted) {
  const TimePoint before = BootClock::Get().Now();
  timespec now = {};
  ASSERT_EQ(clock_gettime(CLOCK_BOOTTIME, &now), 0);
  const TimePoint after = BootClock::Get().Now();
  const TimePoint between(seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
  EXPECT_LE(before, between);
  EXPECT_LE(between, after);
}

TEST(LeaseTermTest, HoldsForItsTimeLessTheMargin) {
  ManualClock clock;
  LeaseTerm term;
  EXPECT_FALSE(term.Holds(clock.Now()));
  term.Renew(clock.Now(), seconds(10));
  clock.Advance(milliseconds(8999));
  EXPECT_TRUE(term.Holds(clock.Now()));
  clock.Advance(milliseconds(1));
  EXPECT_FALSE(term.Holds(clock.Now()));
}

TEST(LeaseTermTest, ALeaseCountsFromBeforeItsRequestWasSent) {
  ManualClock clock;
  LeaseTerm term;
  const TimePoint sent = clock.Now();
  clock.Advance(seconds(4));  // the answer takes so long
  term.Renew(sent, seconds(10));
  EXPECT_EQ(term.until(), sent + seconds(9));
}

TEST(LeaseTermTest, AnAnswerAfterTheTimeRenewsNothing) {
  ManualClock clock;
  LeaseTerm term;
  const TimePoint sent = clock.Now();
  clock.Advance(seconds(20));
  term.Renew(sent, seconds(10));
  EXPECT_FALSE(term.Holds(clock.Now()));
}

TEST(LeaseTermTest, ALateAnswerToAnOlderRequestShortensNothing) {
  ManualClock clock;
  LeaseTerm term;
  const TimePoint older = clock.Now();
  clock.Advance(seconds(3));
  term.Renew(clock.Now(), seconds(10));
  const TimePoint until = term.until();
  term.Renew(older, seconds(10));
  EXPECT_EQ(term.until(), until);
}

TEST(LeaseTermTest, EndsWhenEtcdSaysSo) {
  ManualClock clock;
  LeaseTerm term;
  term.Renew(clock.Now(), seconds(10));
  term.End();
  EXPECT_FALSE(term.Holds(clock.Now()));
}

// --- Epochs.

TEST(EpochGateTest, AnOlderEpochIsRefused) {
  EpochGate gate;
  gate.Learn(5);
  EXPECT_EQ(gate.Admit(4).status().code(), absl::StatusCode::kFailedPrecondition);
  const absl::StatusOr<uint64_t> pass = gate.Admit(5);
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_TRUE(gate.Check(*pass, 5).ok());
  // Another primary was elected, and has not come here yet.
  gate.Learn(6);
  EXPECT_EQ(gate.Check(*pass, 5).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(EpochGateTest, ANewStreamEndsTheOneBefore) {
  EpochGate gate;
  gate.Learn(5);
  const absl::StatusOr<uint64_t> first = gate.Admit(5);
  const absl::StatusOr<uint64_t> second = gate.Admit(5);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(gate.Check(*first, 5).ok());
  EXPECT_TRUE(gate.Check(*second, 5).ok());
  gate.Close();
  EXPECT_FALSE(gate.Check(*second, 5).ok());
}

TEST(EpochGateTest, AStreamMakesNoEpoch) {
  EpochGate gate;
  gate.Learn(5);
  const absl::StatusOr<uint64_t> pass = gate.Admit(5);
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_EQ(gate.Admit(UINT64_MAX).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(gate.Check(*pass, 6).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(gate.epoch(), 5u);
  EXPECT_TRUE(gate.Check(*pass, 5).ok()) << "the primary's stream goes on";
}

}  // namespace rules_test
}  // namespace replicated_kv
