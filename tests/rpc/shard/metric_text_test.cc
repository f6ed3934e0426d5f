// The text is what Prometheus and OpenMetrics parse, whatever labels and help hold.

#include "verbena/rpc/shard/metric_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace verbena::internal {
namespace metric_text_test {

std::string Written(MetricsFormat format) {
  MetricText text(format);
  text.Begin("scrubs_total", MetricKind::kCounter, "Of \"all\"\ndisks \\ hosts.");
  text.Sample("", LabelText({{"disk", "a\"b\\c\nd"}, {"host", "h"}}), uint64_t{3});
  text.Begin("heat", MetricKind::kGauge, "");
  text.Sample("", "", 0.5);
  return std::move(text).Take();
}

TEST(MetricTextTest, PrometheusHasTheWholeNameAndEscapesLabels) {
  EXPECT_EQ(Written(MetricsFormat::kPrometheus),
            "# HELP scrubs_total Of \"all\"\\ndisks \\\\ hosts.\n"
            "# TYPE scrubs_total counter\n"
            "scrubs_total{disk=\"a\\\"b\\\\c\\nd\",host=\"h\"} 3\n"
            "# HELP heat \n"
            "# TYPE heat gauge\n"
            "heat 0.5\n");
}

TEST(MetricTextTest, OpenMetricsNamesACounterWithoutItsSuffixAndHasAnEnd) {
  EXPECT_EQ(Written(MetricsFormat::kOpenMetrics),
            "# HELP scrubs Of \\\"all\\\"\\ndisks \\\\ hosts.\n"
            "# TYPE scrubs counter\n"
            "scrubs_total{disk=\"a\\\"b\\\\c\\nd\",host=\"h\"} 3\n"
            "# HELP heat \n"
            "# TYPE heat gauge\n"
            "heat 0.5\n"
            "# EOF\n");
}

TEST(MetricTextTest, NumbersThatAreNoneHaveNames) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(NumberText(infinity), "+Inf");
  EXPECT_EQ(NumberText(-infinity), "-Inf");
  EXPECT_EQ(NumberText(std::nan("")), "NaN");
  EXPECT_EQ(NumberText(0.000256), "0.000256");
}

TEST(MetricTextTest, BoundsAreNumbersWithAPoint) {
  EXPECT_EQ(BoundText(1), "1.0");
  EXPECT_EQ(BoundText(-20), "-20.0");
  EXPECT_EQ(BoundText(0.5), "0.5");
  EXPECT_EQ(BoundText(1e30), "1e+30");
}

}  // namespace metric_text_test
}  // namespace verbena::internal
