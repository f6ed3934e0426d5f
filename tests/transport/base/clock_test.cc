// Arithmetic of times and durations never wraps around, whatever users choose.

#include "verbena/transport/base/clock.h"

#include <chrono>
#include <ratio>

#include "gtest/gtest.h"

namespace verbena {
namespace clock_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr TimePoint kNow{seconds(1000)};

TEST(ClockTest, ATimePlusAnyDurationNeverWrapsAround) {
  EXPECT_EQ(SaturatingAdd(kNow, seconds(5)), kNow + seconds(5));
  EXPECT_EQ(SaturatingAdd(kNow, -seconds(5)), kNow - seconds(5));
  EXPECT_EQ(SaturatingAdd(kNow, Duration::max()), kNever);
  EXPECT_EQ(SaturatingAdd(kNow, Duration::max() - kNow.time_since_epoch()), kNever);
  EXPECT_EQ(SaturatingAdd(kNow, Duration::min()), kNow + Duration::min());
  EXPECT_EQ(SaturatingAdd(TimePoint(-seconds(1)), Duration::min()),
            internal::kBeforeAllTime + Duration(1));
  EXPECT_EQ(SaturatingAdd(kNever, Duration::min()), kNever);
}

TEST(ClockTest, ADurationOfAnyUnitBecomesTheNearestNanoseconds) {
  EXPECT_EQ(internal::SaturatingCast(hours(2)), hours(2));
  EXPECT_EQ(internal::SaturatingCast(hours::max()), Duration::max());
  EXPECT_EQ(internal::SaturatingCast(hours::min()), Duration::min());
  EXPECT_EQ(internal::SaturatingCast(std::chrono::duration<int>(2'000'000'000)),
            seconds(2'000'000'000));
  EXPECT_EQ(internal::SaturatingCast(std::chrono::duration<uint64_t, std::nano>(UINT64_MAX)),
            Duration::max());
  EXPECT_EQ(internal::SaturatingCast(std::chrono::duration<int64_t, std::pico>(5000)),
            nanoseconds(5));
  EXPECT_EQ(internal::SaturatingCast(std::chrono::duration<double>(0.25)), milliseconds(250));
  EXPECT_EQ(internal::SaturatingCast(std::chrono::duration<double>(1e30)), Duration::max());
  EXPECT_EQ(internal::SaturatingCast(std::chrono::duration<double>(-1e30)), Duration::min());
}

}  // namespace clock_test
}  // namespace verbena
