// The in-sync set changes in etcd first. What is committed counts a lost replica until it has left
// the set there, and one that joins from before it is in the set, also if answers are lost or old.
// A replica joins only with all that may be committed. A backup whose disk is stuck is found.

#include "examples/replicated_kv/membership.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/shard_state.h"
#include "gtest/gtest.h"
#include "tests/examples/replicated_kv/fake_directory.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {
namespace membership_test {

using verbena::Task;

constexpr int64_t kLease = 77;

class MembershipTest : public testing::Test {
 protected:
  void Lead(std::vector<std::string> in_sync) {
    directory_.now.state.in_sync = std::move(in_sync);
    members_.emplace(directory_, point_, directory_.now, kLease);
  }
  // Spawns a change, whose result goes to result_.
  void Start(Task<absl::Status> change) { scope_.Spawn(Keep(std::move(change))); }
  Task<void> Keep(Task<absl::Status> change) { result_ = co_await std::move(change); }

  verbena::internal::ManualScheduler scheduler_;
  FakeDirectory directory_{{.state = {.epoch = 3, .primary = "s1", .in_sync = {}},
                            .revision = 10,
                            .holder_lease = kLease}};
  CommitPoint point_{{.epoch = 2, .sequence = 3}, 3};
  std::optional<Membership> members_;
  std::optional<absl::Status> result_;
  verbena::TaskScope scope_{scheduler_};
};

TEST_F(MembershipTest, NothingIsCommittedBeforeALostReplicaHasLeft) {
  Lead({"s1", "s2", "s3"});
  point_.NoteDurable("s1", 5);
  point_.NoteDurable("s2", 5);
  point_.NoteDurable("s3", 3);
  directory_.answers.Reset();
  Start(members_->Remove("s3"));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.requests, 1);
  EXPECT_EQ(point_.sequence(), 3u);
  directory_.answers.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(point_.sequence(), 5u);
  EXPECT_EQ(directory_.now.state.in_sync, (std::vector<std::string>{"s1", "s2"}));
}

TEST_F(MembershipTest, AReplicaThatJoinsCountsFromBeforeItIsInTheSet) {
  Lead({"s1", "s2"});
  for (const char* name : {"s1", "s2", "s3"}) point_.NoteDurable(name, 5);
  directory_.answers.Reset();
  Start(members_->Add("s3"));
  scheduler_.RunUntilIdle();
  point_.NoteDurable("s1", 7);
  point_.NoteDurable("s2", 7);
  EXPECT_EQ(point_.sequence(), 5u);
  directory_.answers.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(point_.sequence(), 5u);
  point_.NoteDurable("s3", 7);
  EXPECT_EQ(point_.sequence(), 7u);
  EXPECT_TRUE(IsInSync(directory_.now.state, "s3"));
}

TEST_F(MembershipTest, ALostRequestIsMadeAgain) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 5);
  directory_.lost_requests = 2;
  Start(members_->Remove("s2"));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(point_.sequence(), 0u);
  scheduler_.AdvanceBy(std::chrono::seconds(1));
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(point_.sequence(), 5u);
}

TEST_F(MembershipTest, AChangeWhoseAnswerIsLostIsFoundDone) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 5);
  directory_.lost_answers = 1;
  Start(members_->Remove("s2"));
  scheduler_.AdvanceBy(std::chrono::seconds(1));
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(directory_.requests, 2);
  EXPECT_EQ(point_.sequence(), 5u);
  // The next change goes on from there.
  point_.NoteDurable("s2", 5);
  Start(members_->Add("s2"));
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_TRUE(IsInSync(directory_.now.state, "s2"));
}

TEST_F(MembershipTest, AReplicaWhoseJoiningWasCutOffCountsUntilItIsRemoved) {
  Lead({"s1"});
  for (const char* name : {"s1", "s2"}) point_.NoteDurable(name, 5);
  directory_.lost_answers = 1;
  Start(members_->Add("s2"));
  scheduler_.RunUntilIdle();
  scope_.RequestCancel();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_FALSE(result_->ok());
  point_.NoteDurable("s1", 7);
  EXPECT_EQ(point_.sequence(), 5u);
  verbena::TaskScope another(scheduler_);
  another.Spawn(Keep(members_->Remove("s2")));
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(point_.sequence(), 7u);
  EXPECT_EQ(directory_.now.state.in_sync, (std::vector<std::string>{"s1"}));
}

TEST_F(MembershipTest, AReplicaJoinsOnceItHasWhatWasCommittedBeforeItCounted) {
  Lead({"s1"});
  point_.NoteDurable("s1", 9);
  point_.NoteDurable("s2", 5);
  Start(members_->Add("s2"));
  scheduler_.RunUntilIdle();
  point_.NoteDurable("s1", 10);
  point_.NoteDurable("s2", 8);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(point_.sequence(), 9u);
  EXPECT_EQ(directory_.requests, 0) << "it lacks an entry that was committed";
  point_.NoteDurable("s2", 9);
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_TRUE(IsInSync(directory_.now.state, "s2"));
}

// A primary that is alone commits what its own disk has. If a backup had to have that at the moment
// at which it says so, it would never join while writes go on.
TEST_F(MembershipTest, AReplicaThatIsAlwaysALittleBehindJoins) {
  Lead({"s1"});
  uint64_t last = 10;
  const auto round = [&] {
    point_.NoteDurable("s1", ++last);
    point_.NoteDurable("s2", last - 1);
    scheduler_.RunUntilIdle();
  };
  round();
  Start(members_->Add("s2"));
  for (int rounds = 0; rounds < 2; ++rounds) round();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_TRUE(IsInSync(directory_.now.state, "s2"));
  EXPECT_EQ(point_.sequence(), last - 1);
}

TEST_F(MembershipTest, AReplicaThatDoesNotGetThereCountsNoMore) {
  Lead({"s1"});
  point_.NoteDurable("s1", 9);
  point_.NoteDurable("s2", 8);
  Start(members_->Add("s2"));
  scheduler_.RunUntilIdle();
  point_.NoteDurable("s1", 12);
  EXPECT_EQ(point_.sequence(), 9u);
  scheduler_.AdvanceBy(kDiskPatience);
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*result_)) << *result_;
  EXPECT_EQ(directory_.requests, 0);
  EXPECT_EQ(point_.sequence(), 12u);
}

TEST_F(MembershipTest, AReplicaThatIsLostBeforeEtcdIsAskedCountsNoMore) {
  Lead({"s1"});
  point_.NoteDurable("s1", 9);
  Start(members_->Add("s2"));
  scheduler_.RunUntilIdle();
  point_.NoteDurable("s1", 12);
  scope_.RequestCancel();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(absl::IsCancelled(*result_)) << *result_;
  EXPECT_EQ(point_.sequence(), 12u);
}

TEST_F(MembershipTest, NoOtherChangeWaitsForTheDiskOfAReplicaThatJoins) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 9);
  point_.NoteDurable("s2", 5);
  Start(members_->Add("s3"));
  scheduler_.RunUntilIdle();
  std::optional<absl::Status> removed;
  scope_.Spawn([](Task<absl::Status> change, std::optional<absl::Status>& result) -> Task<void> {
    result = co_await std::move(change);
  }(members_->Remove("s2"), removed));
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(removed.has_value());
  EXPECT_TRUE(removed->ok()) << *removed;
  EXPECT_FALSE(result_.has_value());
  EXPECT_EQ(point_.sequence(), 5u) << "the replica that joins counts";
  point_.NoteDurable("s3", 9);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ(point_.sequence(), 9u);
}

TEST_F(MembershipTest, AReplicaThatLacksWhatAnEarlierEpochMayHaveCommittedDoesNotJoin) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 3);
  point_.NoteDurable("s3", 2);
  ASSERT_EQ(point_.sequence(), 0u) << "nobody knows in this epoch what s2 has";
  Start(members_->Add("s3"));
  scheduler_.AdvanceBy(kDiskPatience);
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*result_)) << *result_;
  EXPECT_EQ(directory_.requests, 0);
}

// For a while, as a backup whose stream fell back to an older word would be.
TEST_F(MembershipTest, AReplicaThatLosesEntriesWhileAnotherChangeHasItsTurnDoesNotJoin) {
  Lead({"s1", "s2"});
  for (const char* name : {"s1", "s2", "s3"}) point_.NoteDurable(name, 5);
  directory_.answers.Reset();
  scope_.Spawn([](Task<absl::Status> change) -> Task<void> {
    (void)co_await std::move(change);
  }(members_->Remove("s2")));
  scheduler_.RunUntilIdle();
  Start(members_->Add("s3"));
  scheduler_.RunUntilIdle();
  point_.NoteDurable("s3", 4);
  directory_.answers.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*result_)) << *result_;
  EXPECT_FALSE(IsInSync(directory_.now.state, "s3"));
}

TEST_F(MembershipTest, AnAnswerFromBeforeProvesNothing) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 5);
  SeenState old = directory_.now;
  old.state.in_sync = {"s1"};
  --old.revision;
  directory_.stale = old;
  directory_.answers.Reset();
  Start(members_->Remove("s2"));
  scheduler_.RunUntilIdle();
  directory_.now.state.in_sync = {"s1", "s2"};
  directory_.now.revision += 5;  // the request is refused
  directory_.answers.Set();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(point_.sequence(), 0u) << "etcd has s2 in sync";
  scheduler_.AdvanceBy(std::chrono::seconds(1));
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(directory_.now.state.in_sync, (std::vector<std::string>{"s1"}));
}

TEST_F(MembershipTest, AnotherPrimaryEndsIt) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 5);
  directory_.now.state = {.epoch = 4, .primary = "s2", .in_sync = {"s1", "s2"}};
  directory_.now.revision = 11;
  directory_.now.holder_lease = 99;
  Start(members_->Remove("s2"));
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_EQ(result_->code(), absl::StatusCode::kAborted) << *result_;
  EXPECT_EQ(point_.sequence(), 0u);
  EXPECT_EQ(directory_.now.state.epoch, 4u);
}

TEST_F(MembershipTest, ALeaseThatHasEndedEndsIt) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 5);
  directory_.now.holder_lease = 0;
  Start(members_->Remove("s2"));
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_EQ(result_->code(), absl::StatusCode::kAborted) << *result_;
  EXPECT_EQ(point_.sequence(), 0u);
}

TEST_F(MembershipTest, EtcdHearsWhatIsCommittedAndNeverOfLess) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 9);
  point_.NoteDurable("s2", 2);
  Start(members_->TellCommitted());
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.requests, 0) << "nobody knows the epoch of the second entry";
  point_.NoteDurable("s2", 3);
  Start(members_->TellCommitted());
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.now.state.committed, (LogPosition{.epoch = 2, .sequence = 3}));
  point_.NoteDurable("s2", 7);
  Start(members_->TellCommitted());
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.now.state.committed, (LogPosition{.epoch = 3, .sequence = 7}));
  Start(members_->TellCommitted());
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.requests, 2) << "there was nothing new";
  EXPECT_EQ(directory_.now.state.in_sync, (std::vector<std::string>{"s1", "s2"}));

  directory_.now.state.committed = {.epoch = 3, .sequence = 100};
  members_.emplace(directory_, point_, directory_.now, kLease);
  Start(members_->Remove("s2"));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.now.state.committed, (LogPosition{.epoch = 3, .sequence = 100}));
}

TEST_F(MembershipTest, AChangeOfTheSetTellsWhatIsCommitted) {
  Lead({"s1", "s2"});
  point_.NoteDurable("s1", 9);
  point_.NoteDurable("s2", 7);
  Start(members_->Remove("s2"));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.now.state.committed, (LogPosition{.epoch = 3, .sequence = 7}));
}

TEST_F(MembershipTest, ChangesAreMadeOneByOne) {
  Lead({"s1", "s2", "s3"});
  point_.NoteDurable("s1", 5);
  directory_.answers.Reset();
  Start(members_->Remove("s2"));
  Start(members_->Remove("s3"));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.requests, 1);
  directory_.answers.Set();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.requests, 2);
  EXPECT_EQ(directory_.now.state.in_sync, (std::vector<std::string>{"s1"}));
  EXPECT_EQ(point_.sequence(), 5u);
}

TEST(CommitPointTest, TheSlowestMemberDecidesWhatIsCommitted) {
  CommitPoint point({}, 2);
  point.SetMembers({"s1", "s2", "s3"});
  point.NoteDurable("s1", 9);
  point.NoteDurable("s2", 7);
  EXPECT_EQ(point.sequence(), 0u);
  point.NoteDurable("s3", 4);
  EXPECT_EQ(point.sequence(), 4u);
  point.SetMembers({"s1", "s2"});
  EXPECT_EQ(point.sequence(), 7u);
}

TEST(CommitPointTest, OthersDoNotCount) {
  CommitPoint point({}, 2);
  point.SetMembers({"s1", "s2"});
  point.NoteDurable("s1", 9);
  point.NoteDurable("s3", 9);
  EXPECT_EQ(point.sequence(), 0u);
}

TEST(CommitPointTest, NeverGoesBack) {
  CommitPoint point({}, 2);
  point.SetMembers({"s1"});
  point.NoteDurable("s1", 9);
  point.SetMembers({"s1", "s2"});
  EXPECT_EQ(point.sequence(), 9u);
  point.NoteDurable("s1", 12);
  EXPECT_EQ(point.sequence(), 9u);
}

TEST(LoggedReasonsTest, AReasonIsNewOnceAndAgainAfterTheBackupWasInSync) {
  LoggedReasons logged;
  EXPECT_TRUE(logged.IsNew(absl::DataLossError("entry 17 is not in memory any more")));
  EXPECT_TRUE(logged.IsNew(absl::ResourceExhaustedError("the disk is full")));
  EXPECT_FALSE(logged.IsNew(absl::DataLossError("entry 18 is not in memory any more")));
  EXPECT_FALSE(logged.IsNew(absl::ResourceExhaustedError("the disk is full")));
  logged.Clear();
  EXPECT_TRUE(logged.IsNew(absl::ResourceExhaustedError("the disk is full")));
}

TEST(LoggedReasonsTest, IsBounded) {
  LoggedReasons logged;
  for (size_t i = 0; i < LoggedReasons::kMaxReasons; ++i) {
    EXPECT_TRUE(logged.IsNew(absl::InternalError(std::string(i + 1, 'x'))));
  }
  EXPECT_FALSE(logged.IsNew(absl::InternalError("another")));
}

TEST(BackupProgressTest, ADiskThatTakesNothingIsStuckHoweverOftenTheBackupAnswers) {
  verbena::TimePoint now(std::chrono::hours(1));
  BackupProgress progress;
  EXPECT_FALSE(progress.IsStuck(7, 7, now));
  now += std::chrono::hours(1);
  EXPECT_FALSE(progress.IsStuck(7, 7, now)) << "it has all";
  EXPECT_FALSE(progress.IsStuck(9, 7, now));
  for (int answers = 0; answers < 25; ++answers) {
    EXPECT_FALSE(progress.IsStuck(9, 8, now));
    now += kDiskPatience / 25;
  }
  now += std::chrono::milliseconds(1);
  EXPECT_TRUE(progress.IsStuck(100, 8, now));
}

TEST(BackupProgressTest, ADiskThatIsSlowIsNotStuck) {
  verbena::TimePoint now(std::chrono::hours(1));
  BackupProgress progress;
  for (uint64_t durable = 0; durable < 100; ++durable) {
    EXPECT_FALSE(progress.IsStuck(durable + 1, durable, now));
    now += kDiskPatience;
  }
}

}  // namespace membership_test
}  // namespace replicated_kv
