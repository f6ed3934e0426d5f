// A program's own lines go the way of Verbena's, as a component of their own.

#include "verbena/rpc/log.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/transport/base/captured_log.h"

namespace verbena {
namespace log_test {

TEST(ApplicationLogTest, LinesOfTheProgramAreAComponentWithALevelOfItsOwn) {
  CapturedLog log("debug,application=warning");
  Log(LogLevel::kWarning, "the volume is full");
  Log(LogLevel::kInfo, "below the level");
  const std::vector<CapturedLog::Line> lines = log.TakeLines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].component, LogComponent::kApplication);
  EXPECT_EQ(lines[0].level, LogLevel::kWarning);
  EXPECT_EQ(lines[0].text, "the volume is full");
}

}  // namespace log_test
}  // namespace verbena
