// A sink that throws costs its line, and nothing else.

#include "verbena/transport/base/log.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace verbena {
namespace {

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

}  // namespace
}  // namespace verbena
