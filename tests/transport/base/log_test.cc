// Sinks get each line with its level, component and fields, as long as its component's level admits
// it, and may be replaced while threads log. A line that is not written is not formatted. Levels
// change by text, which is refused as a whole if a word is wrong.

#include "verbena/transport/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/transport/base/captured_log.h"

namespace verbena {
namespace log_test {

using internal::ThrottledLog;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string MessageOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

// Says that it was asked for a text.
std::string Formatted(int& times) {
  ++times;
  return "formatted";
}

TEST(LogTest, WhoeverLogsGoesOnThoughTheSinkThrows) {
  int lines = 0;
  SetLogSink([&lines](const LogRecord&) {
    ++lines;
    throw std::runtime_error("the disk is full");
  });
  VERBENA_LOG_LINE(kFile, kError, "first");
  VERBENA_LOG_LINE(kFile, kError, "second");
  SetLogSink(nullptr);
  EXPECT_EQ(lines, 2);
}

TEST(LogTest, ALineOfTheDefaultSinkBeginsWithTheTimeInUtc) {
  SetLogSink(nullptr);
  const time_t before = time(nullptr);
  ::testing::internal::CaptureStderr();
  VERBENA_LOG_LINE(kFile, kWarning, "the disk is full");
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
  EXPECT_THAT(line, EndsWith("Z verbena: warning: file: the disk is full\n"));
}

TEST(LogTest, TextOfAPeerMakesNoLineAndReachesNoTerminal) {
  ::testing::internal::CaptureStderr();
  internal::WriteLog(LogComponent::kLink, LogLevel::kError, "so\nfar\r\t\x1b[2J\x7f, größer \\n");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              EndsWith(" error: link: so\\nfar\\r\\t\\x1b[2J\\x7f, größer \\n\n"));
  EXPECT_EQ(internal::EscapeControls(std::string_view("\0", 1)), "\\x00");
}

TEST(LogTest, ASinkGetsComponentLevelAndFieldsBesideTheWholeSentence) {
  CapturedLog log;
  const std::string peer = "10.0.0.7:4000";
  VERBENA_LOG_LINE(kLink, kError, "10.0.0.7:4000 breaks the protocol",
                   {{"peer", peer}, {"link", uint32_t{17}}});
  const std::vector<CapturedLog::Line> lines = log.TakeLines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].component, LogComponent::kLink);
  EXPECT_EQ(lines[0].level, LogLevel::kError);
  EXPECT_EQ(lines[0].text, "10.0.0.7:4000 breaks the protocol");
  EXPECT_THAT(lines[0].fields, ElementsAre(Pair("link", "17"), Pair("peer", peer)));
}

// What the sink captures may be destroyed as soon as another one is set.
TEST(LogTest, TheFormerSinkHasEndedWhenAnotherOneIsSet) {
  for (int round = 0; round < 100; ++round) {
    auto alive = std::make_unique<std::atomic<bool>>(true);
    std::atomic<bool> wrote = false, stop = false, dead_seen = false;
    SetLogSink([alive = alive.get(), &wrote, &dead_seen](const LogRecord&) {
      wrote = true;
      std::this_thread::yield();
      if (!alive->load()) dead_seen = true;
    });
    std::thread writer([&stop] {
      while (!stop) VERBENA_LOG_LINE(kFile, kError, "a line");
    });
    while (!wrote) std::this_thread::yield();
    SetLogSink([](const LogRecord&) {});
    *alive = false;
    alive = nullptr;
    stop = true;
    writer.join();
    EXPECT_FALSE(dead_seen);
  }
  SetLogSink(nullptr);
}

TEST(LogLevelsTest, ALineBelowItsComponentsLevelIsNotFormatted) {
  CapturedLog log("info,link=error");
  int times = 0;
  VERBENA_LOG_LINE(kLink, kWarning, Formatted(times), {{"times", ++times}});
  EXPECT_EQ(times, 0);
  VERBENA_LOG_LINE(kServer, kWarning, Formatted(times));
  EXPECT_EQ(times, 1);
  EXPECT_EQ(log.Take().size(), 1u);
}

TEST(LogLevelsTest, LevelsChangeByComponentAndTheLastWordCounts) {
  const CapturedLog log;
  ASSERT_TRUE(SetLogLevels("server=off, warning,link=debug , link = info").ok());
  EXPECT_EQ(LogLevels(),
            "executor=warning,memory=warning,device=warning,connect=warning,link=info,file=warning,"
            "runtime=warning,client=warning,server=warning,naming=warning,admin=warning,"
            "application=warning");
  EXPECT_TRUE(internal::IsLogged(LogComponent::kLink, LogLevel::kInfo));
  EXPECT_FALSE(internal::IsLogged(LogComponent::kLink, LogLevel::kDebug));
  ASSERT_TRUE(SetLogLevels("server=off").ok());
  EXPECT_FALSE(internal::IsLogged(LogComponent::kServer, LogLevel::kError));
  EXPECT_TRUE(internal::IsLogged(LogComponent::kClient, LogLevel::kWarning));
}

TEST(LogLevelsTest, AWrongWordIsNamedWithTheNearestAndChangesNothing) {
  const CapturedLog log;
  const std::string before = LogLevels();
  EXPECT_EQ(MessageOf(SetLogLevels("server=debug,lnk=debug")),
            "\"lnk\" is no component of the log: write \"link\", or another of executor, memory, "
            "device, connect, link, file, runtime, client, server, naming, admin, application");
  EXPECT_EQ(MessageOf(SetLogLevels("link=debg")),
            "\"debg\" is no level of link: write \"debug\", or another of debug, info, warning, "
            "error, off");
  EXPECT_THAT(MessageOf(SetLogLevels("inof")),
              HasSubstr("\"inof\" is no level of the log: write \"info\""));
  EXPECT_THAT(MessageOf(SetLogLevels("link")),
              HasSubstr("\"link\" has no level: write link=LEVEL"));
  EXPECT_THAT(MessageOf(SetLogLevels("")), HasSubstr("\"\" is no level of the log"));
  EXPECT_THAT(MessageOf(SetLogLevels("error,")), HasSubstr("\"\" is no level of the log"));
  EXPECT_THAT(MessageOf(SetLogLevels("link=\x01" + std::string(1 << 20, 'x'))),
              AllOf(HasSubstr("\\x01xxx"), HasSubstr("…\" is no level of link"),
                    ::testing::SizeIs(::testing::Lt(300u))));
  EXPECT_EQ(LogLevels(), before);
}

// In a process of its own each, since the variable is read once.
TEST(LogLevelsDeathTest, TheEnvironmentSaysWhatIsLoggedAtFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto levels_with = [](const char* value) {
    setenv("VERBENA_LOG", value, 1);
    SetLogSink([](const LogRecord& record) {
      std::fprintf(stderr, "LINE %s.\n", std::string(record.text).c_str());
    });
    VERBENA_LOG_LINE(kLink, kInfo, "info");
    std::fprintf(stderr, "LEVELS %s.\n", LogLevels().c_str());
    std::_Exit(0);
  };
  const ::testing::ExitedWithCode succeeded(0);
  EXPECT_EXIT(levels_with(""), succeeded, "^LEVELS executor=warning,.*application=warning");
  EXPECT_EXIT(levels_with("info"), succeeded,
              "LINE info.\nLEVELS executor=info,.*application=info");
  EXPECT_EXIT(levels_with("warning,link=debug"), succeeded,
              "LINE info.\nLEVELS executor=warning,.*link=debug,file=warning,");
  EXPECT_EXIT(levels_with("link=debug,fil=info"), succeeded,
              "LINE VERBENA_LOG does not count: \"fil\" is no component of the log: write "
              "\"file\".*\nLEVELS executor=warning,.*link=warning,file=warning,");
}

TEST(ThrottledLogTest, LinesThatAreLeftOutAreCountedAndNotFormatted) {
  CapturedLog log;
  ThrottledLog throttled(LogComponent::kServer, {.lines = 2, .interval = std::chrono::seconds(5)});
  int times = 0;
  ThrottledLog::Time now(std::chrono::seconds(100));
  for (int i = 0; i < 10; ++i) {
    VERBENA_LOG_THROTTLED(throttled, kWarning, now, Formatted(times), {{"peer", "a"}});
  }
  EXPECT_EQ(times, 2);
  EXPECT_EQ(log.Take().size(), 2u);
  now += std::chrono::seconds(7);
  VERBENA_LOG_THROTTLED(throttled, kWarning, now, Formatted(times), {{"peer", "a"}});
  const std::vector<CapturedLog::Line> lines = log.TakeLines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].text, "8 more lines like the next were left out in 7 s");
  EXPECT_THAT(lines[0].fields, ElementsAre(Pair("left_out", "8")));
  EXPECT_EQ(lines[0].component, LogComponent::kServer);
  EXPECT_EQ(lines[1].text, "formatted");
  EXPECT_THAT(lines[1].fields, ElementsAre(Pair("peer", "a")));
}

TEST(ThrottledLogTest, LinesBelowTheLevelCountNowhere) {
  CapturedLog log("warning");
  ThrottledLog throttled(LogComponent::kServer, {.lines = 1, .interval = std::chrono::seconds(5)});
  int times = 0;
  const ThrottledLog::Time now(std::chrono::seconds(100));
  VERBENA_LOG_THROTTLED(throttled, kInfo, now, Formatted(times));
  EXPECT_EQ(times, 0);
  VERBENA_LOG_THROTTLED(throttled, kWarning, now, Formatted(times));
  EXPECT_EQ(times, 1);
  EXPECT_THAT(log.Take(), ElementsAre("formatted"));
}

}  // namespace log_test
}  // namespace verbena
