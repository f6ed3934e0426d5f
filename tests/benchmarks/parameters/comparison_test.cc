// A comparison of parameters prints one row for each x, and writes null, not zero, for a figure
// that the device cannot give.

#include "verbena/benchmarks/parameters/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace verbena::benchmarks {
namespace {

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

}  // namespace
}  // namespace verbena::benchmarks
