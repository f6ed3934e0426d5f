// A comparison of parameters prints one row for each x, and writes null, not zero, for a figure
// that the device cannot give. The point up to which one curve is lowest is where it first is not.

#include "verbena/benchmarks/parameters/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace verbena::benchmarks {
namespace comparison_test {

using testing::HasSubstr;

const Comparison kTwoCurves = {"inline", "Inline & not",
                               "bytes",  "us",
                               {8, 64},  {{"inline", {1.5, 2.25}}, {"not inline", {3, 0}}}};

TEST(ComparisonTest, TheTableHasARowForEachX) {
  const std::string table = ToTable(kTwoCurves);
  EXPECT_THAT(table, HasSubstr("Inline & not [us]\n"));
  EXPECT_THAT(table, HasSubstr("8           1.5             3\n"));
  EXPECT_THAT(table, HasSubstr("64          2.25             -\n"));
}

TEST(ComparisonTest, AFigureThatADeviceCannotGiveIsNullAndNotZero) {
  EXPECT_EQ(ToJsonLines(kTwoCurves, "soft0"),
            R"({"bench":"parameters","device":"soft0","comparison":"inline","curve":"inline",)"
            R"("x":8,"y":1.5})"
            "\n"
            R"({"bench":"parameters","device":"soft0","comparison":"inline","curve":"inline",)"
            R"("x":64,"y":2.25})"
            "\n"
            R"({"bench":"parameters","device":"soft0","comparison":"inline","curve":"not inline",)"
            R"("x":8,"y":3})"
            "\n"
            R"({"bench":"parameters","device":"soft0","comparison":"inline","curve":"not inline",)"
            R"("x":64,"y":null})"
            "\n");
}

TEST(ComparisonTest, ACurveIsLowestUpToThePointBeforeItsFirstLoss) {
  const Comparison comparison = {"requests",
                                 "",
                                 "bytes",
                                 "us",
                                 {1, 2, 4, 8},
                                 {{"mine", {1, 2, 3, 1}},
                                  {"one", {2, 2, 2, 2}},
                                  {"other", {0, 5, 9, 9}},
                                  {"none", {0, 0, 0, 0}}}};
  EXPECT_EQ(LowestUpTo(comparison, 0, {1, 2}), 2) << "whatever comes behind";
  EXPECT_EQ(LowestUpTo(comparison, 0, {2, 3}), 8) << "a point that is not there beats nobody";
  EXPECT_EQ(LowestUpTo(comparison, 1, {0}), 0);
  EXPECT_EQ(LowestUpTo(comparison, 3, {0}), 0) << "the device does not support it";
}

}  // namespace comparison_test
}  // namespace verbena::benchmarks
