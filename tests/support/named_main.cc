// The main() of a program with the tests of several sources (tools/tests.bzl). Under the name of
// one of them, without its .cc, it has that one's cases alone; as `tests` all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/named_filter.h"

namespace verbena {
namespace {

std::vector<NamedCase> AllCases() {
  std::vector<NamedCase> cases;
  const ::testing::UnitTest& program = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      cases.push_back({suite.name(), test.name(), test.file()});
    }
  }
  return cases;
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) {
  std::string_view name = argv[0];
  name.remove_prefix(name.rfind('/') + 1);
  ::testing::InitGoogleMock(&argc, argv);
  const std::vector<verbena::NamedCase> cases = verbena::AllCases();
  if (const std::string mistake = verbena::MistakeOf(cases); !mistake.empty()) {
    std::fprintf(stderr, "%s: %s\n", argv[0], mistake.c_str());
    return 1;
  }
  if (name != "tests") {
    const std::string filter =
        verbena::NamedFilter(std::string(name) + ".cc", cases, ::testing::GTEST_FLAG(filter));
    if (filter.empty()) {
      std::fprintf(stderr, "%s: no case of this program is in %s.cc\n", argv[0],
                   std::string(name).c_str());
      return 1;
    }
    ::testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
