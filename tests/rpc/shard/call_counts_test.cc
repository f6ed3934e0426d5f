// Each time has its slot, and each exported bound is a bound of slots. A served call has ended when
// its group of responses is posted. Methods beyond the bound share one place.

#include "verbena/rpc/shard/call_counts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tests/support/manual_clock.h"
#include "verbena/rpc/call.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/ticks.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace call_counts_test {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const MethodDescriptor kRead("store.Store/Read", Idempotency::kUnknown);

uint64_t CallsIn(const CallTimes& times) {
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < CallTimes::kSlots; ++slot) sum += times.count(slot);
  return sum;
}

Duration TimeIn(const CallTimes& times) {
  return Duration(
      static_cast<int64_t>(static_cast<double>(times.units()) * CallTimes::kUnitNanoseconds));
}

TEST(CallTimesTest, EachSlotBeginsWhereTheOneBeforeEnds) {
  EXPECT_EQ(CallTimes::SlotOf(0), 0u);
  for (uint32_t slot = 1; slot < CallTimes::kSlots; ++slot) {
    const uint64_t begin = CallTimes::UnitsAt(slot);
    EXPECT_EQ(CallTimes::SlotOf(begin), slot);
    EXPECT_EQ(CallTimes::SlotOf(begin - 1), slot - 1);
  }
}

TEST(CallTimesTest, ASlotIsAtMostAFourthOfItsTimeWide) {
  for (uint32_t slot = 4; slot + 1 < CallTimes::kSlots; ++slot) {
    const uint64_t begin = CallTimes::UnitsAt(slot);
    EXPECT_LE(4 * (CallTimes::UnitsAt(slot + 1) - begin), begin) << slot;
  }
}

TEST(CallTimesTest, EachExportedBoundIsABoundOfSlots) {
  for (int k = 0; k < CallTimes::kBounds; ++k) {
    const uint64_t bound = uint64_t{32} << k;  // 250 ns * 2^k
    EXPECT_EQ(CallTimes::UnitsAt(CallTimes::SlotOf(bound)), bound) << k;
  }
}

TEST(CallTimesTest, TheLongestTimesShareTheLastSlot) {
  EXPECT_EQ(CallTimes::SlotOf(~uint64_t{0}), CallTimes::kSlots - 1);
}

class CallCountsTest : public ::testing::Test {
 protected:
  CallCountsTest() { ticks_.Use(TickSource(clock_)); }

  ManualClock clock_;
  TurnTicks ticks_;
};

TEST_F(CallCountsTest, ACallEndsWhenThePollFoundItsResponse) {
  CallCounts counts(ticks_);
  MethodCounts& method = counts.Of(kRead);
  const Ticks began = ticks_.Read();
  clock_.Advance(milliseconds(2));
  ticks_.OnFound();
  clock_.Advance(milliseconds(5));
  method.EndFound(began);
  EXPECT_EQ(CallsIn(method.ok()), 1u);
  EXPECT_EQ(TimeIn(method.ok()), milliseconds(2));
}

TEST_F(CallCountsTest, AFailureHasTheTimesOfItsCodeAndAnOutcome) {
  CallCounts counts(ticks_);
  MethodCounts& method = counts.Of(kRead);
  EXPECT_EQ(method.times(5), nullptr);
  method.End(1000, absl::StatusCode::kNotFound, Outcome::kExecuted);
  ASSERT_NE(method.times(5), nullptr);
  EXPECT_EQ(CallsIn(*method.times(5)), 1u);
  EXPECT_EQ(CallsIn(method.ok()), 0u);
  EXPECT_EQ(method.failed(Outcome::kExecuted), 1u);
}

TEST_F(CallCountsTest, ACodeThatNobodyKnowsCountsAsUnknown) {
  CallCounts counts(ticks_);
  MethodCounts& method = counts.Of(kRead);
  method.End(1000, static_cast<absl::StatusCode>(200), Outcome::kMaybeExecuted);
  ASSERT_NE(method.times(2), nullptr);
  EXPECT_EQ(CallsIn(*method.times(2)), 1u);
}

TEST_F(CallCountsTest, ATimeThatRunsBackwardsIsNone) {
  CallCounts counts(ticks_);
  MethodCounts& method = counts.Of(kRead);
  ticks_.OnFound();
  method.EndFound(ticks_.found() + 1000);
  EXPECT_EQ(TimeIn(method.ok()), Duration::zero());
  EXPECT_EQ(method.ok().count(0), 1u);
}

TEST_F(CallCountsTest, MethodsBeyondTheBoundShareOnePlace) {
  CallCounts counts(ticks_);
  std::deque<MethodDescriptor> methods;
  for (uint32_t i = 0; i < CallCounts::kMaxMethods + 1; ++i) {
    methods.emplace_back("store.Store/Read", Idempotency::kUnknown);
    counts.Of(methods.back()).begun.Add(1);
  }
  EXPECT_EQ(&counts.Of(methods.back()), &counts.other());
  EXPECT_GE(counts.other().begun.value(), 1u);
  uint64_t begun = 0;
  counts.ForEach([&begun](const MethodCounts& each) { begun += each.begun.value(); });
  EXPECT_EQ(begun, CallCounts::kMaxMethods + 1);
}

class ServedCallsTest : public ::testing::Test {
 protected:
  ServedCallsTest() : executor_(*Executor::Create({.clock = &clock_})), counts_(*executor_) {}

  ManualClock clock_;
  const std::unique_ptr<Executor> executor_;
  ExecutorCounts counts_;
};

// What a handler of the group takes counts for those before it, too: their responses wait.
TEST_F(ServedCallsTest, AGroupEndsWithTheTurn) {
  MethodCounts& method = counts_.server.Of(kRead);
  const Ticks arrived = executor_->ticks().Read();
  counts_.served.Push(arrived, method, method.ok());
  clock_.Advance(microseconds(10));
  counts_.served.Push(arrived, method, method.ok());
  EXPECT_EQ(CallsIn(method.ok()), 0u);
  clock_.Advance(microseconds(20));
  executor_->Poll();
  EXPECT_EQ(CallsIn(method.ok()), 2u);
  EXPECT_EQ(TimeIn(method.ok()), microseconds(60));
}

TEST_F(ServedCallsTest, AFullGroupIsCountedAtOnce) {
  MethodCounts& method = counts_.server.Of(kRead);
  for (uint64_t i = 0; i < ServedCalls::kGroup + 1; ++i)
    counts_.served.Push(0, method, method.ok());
  EXPECT_EQ(CallsIn(method.ok()), ServedCalls::kGroup);
  executor_->Poll();
  EXPECT_EQ(CallsIn(method.ok()), ServedCalls::kGroup + 1);
}

// More runs than are kept count the ones before at once.
TEST_F(ServedCallsTest, CallsThatCameApartHaveTheirOwnTimes) {
  MethodCounts& method = counts_.server.Of(kRead);
  constexpr uint64_t kCalls = 3 * ServedCalls::kRuns;
  for (uint64_t i = 0; i < kCalls; ++i) {
    counts_.served.Push(executor_->ticks().Read(), method, method.ok());
    clock_.Advance(microseconds(1));
  }
  executor_->Poll();
  EXPECT_EQ(CallsIn(method.ok()), kCalls);
  // kRuns calls end when the next one comes, which finds no place; the last ones with the turn.
  constexpr int64_t kOfARound = ServedCalls::kRuns * (ServedCalls::kRuns + 1) / 2;
  EXPECT_EQ(TimeIn(method.ok()), microseconds(3 * kOfARound));
}

TEST_F(ServedCallsTest, OneReadingServesAGroup) {
  MethodCounts& method = counts_.server.Of(kRead);
  const uint64_t before = clock_.reads();
  for (uint64_t i = 0; i < ServedCalls::kGroup; ++i) counts_.served.Push(0, method, method.ok());
  EXPECT_EQ(clock_.reads() - before, 1u);
}

TEST(RefusalBoundTest, EachHasAName) {
  for (size_t i = 0; i < kRefusalBounds; ++i) {
    EXPECT_FALSE(std::string(NameOf(static_cast<RefusalBound>(i))).empty()) << i;
  }
}

}  // namespace call_counts_test
}  // namespace verbena::internal
