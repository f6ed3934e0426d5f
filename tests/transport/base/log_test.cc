// A sink that throws costs its line, and nothing else. The default sink's lines have the time.

#include "verbena/transport/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <stdexcept>
#include <string>

namespace verbena {
namespace log_test {

int lines = 0;

TEST(LogTest, WhoeverLogsGoesOnThoughTheSinkThrows) {
  SetLogSink([](LogLevel, const std::string&) {
    ++lines;
    throw std::runtime_error("the disk is full");
  });
  Log(LogLevel::kError, "first");
  Log(LogLevel::kError, "second");
  SetLogSink(nullptr);
  EXPECT_EQ(lines, 2);
}

TEST(LogTest, ALineOfTheDefaultSinkBeginsWithTheTimeInUtc) {
  SetLogSink(nullptr);
  const time_t before = time(nullptr);
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kWarning, "the disk is full");
  const std::string line = ::testing::internal::GetCapturedStderr();
  const time_t after = time(nullptr);
  tm utc{};
  int milliseconds = -1;
  ASSERT_EQ(std::sscanf(line.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ ", &utc.tm_year, &utc.tm_mon,
                        &utc.tm_mday, &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &milliseconds),
            7)
      << line;
  utc.tm_year -= 1900;
  utc.tm_mon -= 1;
  EXPECT_GE(timegm(&utc), before) << line;
  EXPECT_LE(timegm(&utc), after) << line;
  EXPECT_THAT(line, ::testing::EndsWith("Z verbena: warning: the disk is full\n"));
}

}  // namespace log_test
}  // namespace verbena
