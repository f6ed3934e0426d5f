#include "verbena/benchmarks/parameters/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace verbena::benchmarks {
namespace {

using testing::HasSubstr;
using testing::Not;

const Comparison kTwoCurves = {"inline", "Inline & not",
                               "bytes",  "us",
                               {8, 64},  {{"inline", {1.5, 2.25}}, {"not inline", {3, 0}}}};

TEST(ComparisonTest, TheTableHasARowForEachX) {
  const std::string table = ToTable(kTwoCurves);
  EXPECT_THAT(table, HasSubstr("Inline & not [us]\n"));
  EXPECT_THAT(table, HasSubstr("8           1.5             3\n"));
  EXPECT_THAT(table, HasSubstr("64          2.25             -\n"));
}

TEST(ComparisonTest, WhatADeviceCannotDoIsNullAndNotZero) {
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

TEST(ComparisonTest, ThePictureIsOneDocumentWithEveryCurveAndEscapesItsText) {
  const std::string svg = ToSvg(kTwoCurves, "soft0");
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_THAT(svg, HasSubstr("Inline &amp; not (soft0)"));
  EXPECT_THAT(svg, HasSubstr(">not inline</text>"));
  // Three points: the one that the device cannot do is left out.
  size_t circles = 0;
  for (size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1)) {
    ++circles;
  }
  EXPECT_EQ(circles, 3u);
}

TEST(ComparisonTest, APictureWithoutAnyFigureIsStillOne) {
  const Comparison empty = {"x", "t", "n", "us", {1}, {{"c", {0}}}};
  const std::string svg = ToSvg(empty, "d");
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

}  // namespace
}  // namespace verbena::benchmarks
