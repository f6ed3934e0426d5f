// A program that has the cases of several sources runs those of one, within what a filter leaves.

#include "tests/support/named_filter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace verbena {
namespace named_filter_test {

const std::vector<NamedCase>& Cases() {
  static const auto& cases = *new std::vector<NamedCase>{{"A", "one", "tests/x/a_test.cc"},
                                                         {"A", "two", "tests/x/a_test.cc"},
                                                         {"B", "one", "tests/x/b_test.cc"},
                                                         {"W/C", "D/0", "tests/x/ba_test.cc"}};
  return cases;
}

TEST(NamedFilterTest, LeavesTheCasesOfOneSource) {
  EXPECT_EQ(NamedFilter("a_test.cc", Cases(), "*"), "*-B.one:W/C.D/0");
  EXPECT_EQ(NamedFilter("ba_test.cc", Cases(), "*"), "*-A.one:A.two:B.one");
}

TEST(NamedFilterTest, KeepsWhatAFilterSays) {
  EXPECT_EQ(NamedFilter("a_test.cc", Cases(), "A.*"), "A.*-B.one:W/C.D/0");
  EXPECT_EQ(NamedFilter("a_test.cc", Cases(), "*-A.one"), "*-A.one:B.one:W/C.D/0");
}

TEST(NamedFilterTest, AProgramOfOneSourceKeepsItsFilter) {
  EXPECT_EQ(NamedFilter("a_test.cc", {Cases()[0]}, "A.*"), "A.*");
}

TEST(NamedFilterTest, ASourceWithoutCasesIsNoFilter) {
  EXPECT_EQ(NamedFilter("c_test.cc", Cases(), "*"), "");
  EXPECT_EQ(NamedFilter("test.cc", Cases(), "*"), "");
}

TEST(NamedFilterTest, TwoCasesOfOneNameAndCasesInHeadersAreMistakes) {
  EXPECT_EQ(MistakeOf(Cases()), "");
  std::vector<NamedCase> twice = Cases();
  twice.push_back({"B", "one", "tests/x/c_test.cc"});
  EXPECT_EQ(
      MistakeOf(twice),
      "B.one is in tests/x/b_test.cc and in tests/x/c_test.cc: call one of the two otherwise");
  EXPECT_EQ(MistakeOf({{"A", "one", "tests/x/a.h"}}),
            "A.one is in tests/x/a.h: a case belongs into a *_test.cc");
}

}  // namespace named_filter_test
}  // namespace verbena
