// A primary commits its writes with the in-sync set that etcd has, whatever names that has.

#include "examples/replicated_kv/primary.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/memory_store.h"
#include "examples/replicated_kv/lease_term.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "gtest/gtest.h"
#include "tests/examples/replicated_kv/fake_directory.h"
#include "tests/support/manual_clock.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {
namespace primary_test {

using verbena::Task;

constexpr int64_t kLease = 77;

// The replica s1 without others.
class PrimaryTest : public testing::Test {
 protected:
  // The log ends at `sequence`.
  void Lead(std::vector<std::string> in_sync, uint64_t sequence = 0) {
    MakePrimary(std::move(in_sync), sequence);
    scope_.Spawn(primary_->Run());
  }
  // The primary notes by itself neither what its disk has nor who left the set.
  void MakePrimary(std::vector<std::string> in_sync, uint64_t sequence = 0) {
    directory_.now.state.in_sync = std::move(in_sync);
    term_.Renew(clock_.Now(), std::chrono::seconds(10));
    EXPECT_TRUE(scheduler_.Run(store_.Load()).ok());
    const uint64_t epoch = sequence == 0 ? 0 : 1;
    EXPECT_TRUE(scheduler_.Run(store_.WritePosition({.epoch = epoch, .sequence = sequence})).ok());
    log_.emplace(store_, scope_);
    primary_.emplace(PrimaryParts{.name = "s1",
                                  .store = store_,
                                  .log = *log_,
                                  .directory = directory_,
                                  .peers = peers_,
                                  .term = term_,
                                  .lease = kLease,
                                  .clock = clock_},
                     directory_.now);
  }
  Task<void> Put(uint64_t number = 1, uint64_t highest = 0) {
    v1::WriteRequest request;
    request.set_key("k");
    request.set_value("v");
    const absl::StatusOr<LogPosition> place = co_await primary_->Begin(
        WriteKind::kPut, request,
        {.id = {.client = {1}, .number = number}, .acknowledged_below = 1, .highest = highest});
    result_ = place.status();
    place_ = place.value_or(LogPosition());
    if (place.ok()) result_ = co_await primary_->AwaitCommitted(place->sequence);
    ++ended_;
  }
  void TearDown() override {
    primary_->End("the test is over");
    scheduler_.RunUntilIdle();
  }

  verbena::internal::ManualScheduler scheduler_;
  verbena::ManualClock clock_;
  LeaseTerm term_;
  FakeDirectory directory_{{.state = {.epoch = 2, .primary = "s1", .in_sync = {}},
                            .revision = 10,
                            .holder_lease = kLease}};
  std::vector<OtherReplica> peers_;
  ReplicaStore store_{std::make_unique<kv::MemoryStore>(size_t{1} << 20)};
  std::optional<absl::Status> result_;  // of the last Put()
  LogPosition place_;                   // that it got
  int ended_ = 0;                       // of these
  verbena::TaskScope scope_{scheduler_};
  std::optional<ReplicaLog> log_;
  std::optional<Primary> primary_;
};

TEST_F(PrimaryTest, CommitsAWriteOnceItsOwnDiskHasIt) {
  Lead({"s1"});
  scope_.Spawn(Put());
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(directory_.requests, 0);
}

// Without an epoch, as the .proto says.
TEST_F(PrimaryTest, ARepeatedCallGetsThePlaceThatItHas) {
  Lead({"s1"});
  for (const uint64_t number : {1, 2}) scope_.Spawn(Put(number));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(place_, (LogPosition{.epoch = 2, .sequence = 2}));
  scope_.Spawn(Put(1));
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(place_, (LogPosition{.epoch = 0, .sequence = 1}));
  EXPECT_EQ(log_->last().sequence, 2u);
}

// A client that the primary before this one forgot may have written just before the epoch.
TEST_F(PrimaryTest, TellsHighestNumbersOnceNobodyCanHaveBeenForgottenLately) {
  constexpr uint64_t kInherited = 5;
  Lead({"s1"}, kInherited);
  for (uint64_t number = 1; number <= 3; ++number) {
    term_.Renew(clock_.Now(), std::chrono::seconds(10));
    scope_.Spawn(Put(number, /*highest=*/9));
    scheduler_.RunUntilIdle();
    ASSERT_TRUE(result_->ok()) << *result_;
    EXPECT_EQ(log_->Find(kInherited + number)->highest(), number == 3 ? 9u : 0u) << number;
    clock_.Advance(number == 1 ? kKeepNames - std::chrono::seconds(1) : std::chrono::seconds(1));
  }
}

TEST_F(PrimaryTest, AStepOfTheLogResumesNoWriteThatWaitsForMore) {
  constexpr uint64_t kWrites = 100;
  MakePrimary({"s1"});
  for (uint64_t i = 1; i <= kWrites; ++i) scope_.Spawn(Put(i));
  scheduler_.RunUntilIdle();
  ASSERT_EQ(log_->last().sequence, kWrites);
  for (uint64_t i = 1; i <= kWrites; ++i) {
    log_->Notify();
    primary_->NoteDurable("s1", i);
    EXPECT_LE(scheduler_.RunUntilIdle(), 2u) << "after step " << i;
    EXPECT_EQ(ended_, static_cast<int>(i));
  }
  EXPECT_TRUE(result_->ok()) << *result_;
}

TEST_F(PrimaryTest, ItsEndFailsTheWritesThatWait) {
  MakePrimary({"s1"});
  for (uint64_t i = 1; i <= 3; ++i) scope_.Spawn(Put(i));
  verbena::CancelScope given_up;
  scope_.Spawn([&]() -> Task<void> { co_await Put(4).In(&given_up); });
  scheduler_.RunUntilIdle();
  given_up.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(absl::IsCancelled(*result_)) << *result_;
  primary_->End("the test wants it");
  scheduler_.RunUntilIdle();
  EXPECT_EQ(ended_, 4);
  EXPECT_TRUE(absl::IsUnavailable(*result_)) << *result_;
}

TEST_F(PrimaryTest, TellsEtcdNowAndThenWhatIsCommitted) {
  Lead({"s1"});
  scope_.Spawn(Put());
  scheduler_.RunUntilIdle();
  EXPECT_EQ(directory_.now.state.committed, LogPosition());
  scheduler_.AdvanceBy(kTellCommittedEvery);
  EXPECT_EQ(directory_.now.state.committed, (LogPosition{.epoch = 2, .sequence = 1}));
}

// As after the replicas of a shard were changed by hand.
TEST_F(PrimaryTest, AReplicaThatIsNoneOfTheShardLeavesTheSet) {
  Lead({"gone", "s1"});
  scope_.Spawn(Put());
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value()) << "the write waits for a replica that nobody follows";
  EXPECT_TRUE(result_->ok()) << *result_;
  EXPECT_EQ(directory_.now.state.in_sync, (std::vector<std::string>{"s1"}));
}

}  // namespace primary_test
}  // namespace replicated_kv
