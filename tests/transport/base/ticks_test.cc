// The counter's ticks are as long as the clock says, and readings are shared by a few calls of one
// turn, never across a poll.

#include "verbena/transport/base/ticks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "tests/support/manual_clock.h"

namespace verbena::internal {
namespace ticks_test {

// Readings are nested, so that a thread that loses its core between two of them fails nothing. The
// two times may differ by a hundredth.
TEST(TickSourceTest, TheCountersTimeIsTheClocks) {
  const TickSource source = TickSource::Processor();
  const auto clock = [] { return std::chrono::steady_clock::now(); };
  const Ticks ticks_outside = source.Read();
  const auto begun = clock();
  const Ticks ticks_inside = source.Read();
  for (int i = 0; i < 1'000'000; ++i) (void)clock();
  const Ticks ticks_within = source.Read();
  const auto ended = clock();
  const Ticks ticks_after = source.Read();
  const double by_clock = static_cast<double>((ended - begun).count());
  const auto taken = [&source](Ticks from, Ticks to) {
    return static_cast<double>(source.DurationOf(TicksBetween(from, to)).count());
  };
  EXPECT_LE(taken(ticks_inside, ticks_within), by_clock * 1.01);
  EXPECT_GE(taken(ticks_outside, ticks_after), by_clock * 0.99);
}

TEST(TickSourceTest, AClocksTicksAreItsNanoseconds) {
  ManualClock clock;
  const TickSource source(clock);
  const Ticks before = source.Read();
  clock.Advance(std::chrono::milliseconds(3));
  EXPECT_EQ(source.DurationOf(source.Read() - before), std::chrono::milliseconds(3));
}

TEST(TickSourceTest, UnitsAreRoundedDown) {
  ManualClock clock;
  const uint64_t per_tick = TickSource(clock).UnitsPerTick(250.0 / 32);
  EXPECT_EQ(UnitsIn(0, per_tick), 0u);
  EXPECT_EQ(UnitsIn(249, per_tick), 31u);
  EXPECT_EQ(UnitsIn(250, per_tick), 32u);
  EXPECT_EQ(UnitsIn(16'000'000'000, per_tick), 2'048'000'000u);
}

TEST(TickSourceTest, ATimeThatEndsBeforeItBeginsIsNone) {
  EXPECT_EQ(TicksBetween(100, 99), 0u);
  EXPECT_EQ(TicksBetween(100, 103), 3u);
}

class TurnTicksTest : public ::testing::Test {
 protected:
  TurnTicksTest() {
    ticks_.Use(TickSource(clock_));
    ticks_.BeginTurn();
  }

  ManualClock clock_{ManualClock::kStart, /*step=*/Duration(1)};
  TurnTicks ticks_;
};

TEST_F(TurnTicksTest, AFewShareAReading) {
  const Ticks first = ticks_.Shared();
  for (uint32_t i = 1; i < TurnTicks::kSharers; ++i) EXPECT_EQ(ticks_.Shared(), first) << i;
  EXPECT_GT(ticks_.Shared(), first) << "one more than may share it";
}

TEST_F(TurnTicksTest, NothingIsSharedAcrossATurnOrAPoll) {
  const Ticks first = ticks_.Shared();
  ticks_.BeginTurn();
  const Ticks of_turn = ticks_.Shared();
  EXPECT_GT(of_turn, first);
  ticks_.OnFound();
  EXPECT_GT(ticks_.found(), of_turn);
  EXPECT_GT(ticks_.Shared(), ticks_.found())
      << "what runs after the poll may have taken its time before the call begins";
}

}  // namespace ticks_test
}  // namespace verbena::internal
