// The commands that list, describe and probe a server, and the command line as a whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/verbena/served_command.h"
#include "tools/verbena/calls.h"

namespace verbena::command {
namespace command_line_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using CommandLineTest = ServedCommand;

TEST_F(CommandLineTest, ListsServicesOrTheirMethods) {
  Serve({&partly_, &reflection_});
  const Result services = Run({"list", address()});
  EXPECT_EQ(0, services.exit) << services.error;
  EXPECT_EQ("verbena.testing.partly.Served\nverbena.reflection.v1.Reflection\n", services.output);
  EXPECT_EQ(
      "verbena.testing.partly.Served/Ask\nverbena.reflection.v1.Reflection/List\n"
      "verbena.reflection.v1.Reflection/Describe\n",
      Run({"list", "--methods", address()}).output);
}

TEST_F(CommandLineTest, DescribesServicesMethodsAndMessages) {
  Serve();
  const std::string service = Run({"describe", address(), "verbena.testing.partly.Served"}).output;
  EXPECT_THAT(service, HasSubstr("service Served {"));
  EXPECT_THAT(service, HasSubstr("response_payload: true"));
  EXPECT_THAT(service, HasSubstr("message Question {"));
  EXPECT_THAT(service, Not(HasSubstr("Unserved")));
  const std::string method =
      Run({"describe", address(), "verbena.testing.partly.Served/Ask"}).output;
  EXPECT_THAT(method, HasSubstr("rpc Ask("));
  EXPECT_THAT(method, Not(HasSubstr("service")));
  EXPECT_THAT(Run({"describe", address(), "verbena.testing.partly.Mood"}).output,
              HasSubstr("CURIOUS = 1;"));
  const Result wrong = Run({"describe", address(), "verbena.testing.partly.Server"});
  EXPECT_EQ(kMistake, wrong.exit);
  EXPECT_THAT(wrong.error, HasSubstr("did you mean 'verbena.testing.partly.Served'"));
  EXPECT_EQ(kMistake, Run({"describe", address(), "verbena.testing.partly.Served/Aks"}).exit);
}

TEST_F(CommandLineTest, SaysWhetherAServerOrAServiceServes) {
  Serve();
  const Result serving = Run({"health", address()});
  EXPECT_EQ(0, serving.exit) << serving.error;
  EXPECT_EQ("SERVING\n", serving.output);
  health_.SetServing("verbena.testing.Testing", false);
  const Result not_serving = Run({"health", address(), "verbena.testing.Testing"});
  EXPECT_EQ(kNotServing, not_serving.exit);
  EXPECT_EQ("NOT_SERVING\n", not_serving.output);
  EXPECT_EQ(69, Run({"health", address(), "no.Service"}).exit);
}

TEST_F(CommandLineTest, SaysWhatAServerWithoutHealthMustLink) {
  Serve({&testing_});
  const Result result = Run({"health", address()});
  EXPECT_EQ(76, result.exit);
  EXPECT_THAT(result.error, HasSubstr("give a verbena::HealthService to Server::Start()"));
}

TEST_F(CommandLineTest, BenchCallsAsOftenAsItIsToldTo) {
  Serve();
  const Result result = Run({"bench", address(), "verbena.testing.Testing/Echo", "--rate", "2000",
                             "--seconds", "0.05", R"({"number": 7})"});
  EXPECT_EQ(0, result.exit) << result.error;
  EXPECT_EQ(100u, testing_.echoes());
  EXPECT_THAT(result.output, HasSubstr("100 calls in "));
  EXPECT_THAT(result.output, HasSubstr("p99.9"));
  const Result streaming = Run({"bench", address(), "verbena.testing.Streaming/Echo"});
  EXPECT_EQ(kMistake, streaming.exit);
  EXPECT_THAT(streaming.error, HasSubstr("bench makes unary calls"));
}

TEST_F(CommandLineTest, BenchCountsLatencyFromWhenACallWasDue) {
  Serve();
  // Ten calls that are due within 9 ms, and take 20 ms each, one after another.
  const Result result = Run({"bench", address(), "verbena.testing.Testing/Wait", "--rate", "1000",
                             "--seconds", "0.01", "--in-flight", "1", R"({"wait_us": 20000})"});
  EXPECT_EQ(0, result.exit) << result.error;
  const size_t at = result.output.find("max ");
  ASSERT_NE(std::string::npos, at) << result.output;
  EXPECT_GE(std::stod(result.output.substr(at + 4)), 190'000) << result.output;
}

TEST_F(CommandLineTest, BenchCountsFailuresByTheirCode) {
  Serve();
  const Result result = Run({"bench", address(), "verbena.testing.Testing/Fail", "--rate", "1000",
                             "--seconds", "0.01", R"({"code": 5, "message": "gone"})"});
  EXPECT_EQ(69, result.exit);
  EXPECT_THAT(result.output, HasSubstr("10 failed: NOT_FOUND"));
  EXPECT_THAT(result.error, HasSubstr("gone"));
}

TEST_F(CommandLineTest, RefusesArgumentsThatAreWrong) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"no-such-command"},
                                                       {"list"},
                                                       {"call", "a:1"},
                                                       {"list", "a:1", "--no-such-flag"},
                                                       {"bench", "a:1", "b/c", "--rate", "0"}};
  for (const std::vector<std::string>& arguments : wrong) {
    const Result result = Run(arguments);
    EXPECT_EQ(kMistake, result.exit);
    EXPECT_THAT(result.error, Not(IsEmpty()));
    EXPECT_THAT(result.output, IsEmpty());
  }
}

TEST_F(CommandLineTest, HelpAndVersionAreNoFailures) {
  const std::vector<std::vector<std::string>> right = {
      {"help"}, {"--help"}, {"--version"}, {"call", "--help"}, {"doctor", "--help"}};
  for (const std::vector<std::string>& arguments : right) {
    const Result result = Run(arguments);
    EXPECT_EQ(0, result.exit) << result.error;
    EXPECT_THAT(result.output, Not(IsEmpty()));
  }
  EXPECT_THAT(Run({"call", "--help"}).output, HasSubstr("--payload-out"));
  EXPECT_EQ(Run({"help"}).output, Run({"--help"}).output);
  EXPECT_THAT(Run({"help"}).output, AllOf(HasSubstr("--version"), HasSubstr("doctor")));
}

}  // namespace command_line_test
}  // namespace verbena::command
