// A scraper gets OpenMetrics if its Accept header prefers it, and Prometheus's format otherwise.

#include "verbena/rpc/admin/accept.h"

#include <string>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace accept_test {

void ExpectOpen(const std::string& accept) {
  EXPECT_EQ(AcceptedFormat(accept), MetricsFormat::kOpenMetrics) << accept;
}
void ExpectPlain(const std::string& accept) {
  EXPECT_EQ(AcceptedFormat(accept), MetricsFormat::kPrometheus) << accept;
}

TEST(AcceptedFormatTest, ScrapersGetWhatTheyPrefer) {
  // Of Prometheus 2.42 and 3.0.
  ExpectOpen(
      "application/openmetrics-text;version=1.0.0,application/"
      "openmetrics-text;version=0.0.1;q=0.75,"
      "text/plain;version=0.0.4;q=0.5,*/*;q=0.1");
  ExpectOpen(
      "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
      "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,"
      "text/plain;version=0.0.4;q=0.2,*/*;q=0.1");
  ExpectOpen("application/openmetrics-text");
  ExpectOpen("Application/OpenMetrics-Text ; Version=1.0.0 ; Q=0.2, */*;q=0.1");
}

TEST(AcceptedFormatTest, OthersGetThePlainFormat) {
  ExpectPlain("");
  ExpectPlain("*/*");
  ExpectPlain("text/html,application/xhtml+xml,*/*;q=0.8");
  ExpectPlain("application/json");
}

TEST(AcceptedFormatTest, TheHeavierOneIsTaken) {
  ExpectPlain("application/openmetrics-text;q=0.5,text/plain");
  ExpectPlain("application/openmetrics-text;q=0.5,text/plain;q=0.6");
  ExpectOpen("application/openmetrics-text;q=0.5,text/plain;q=0.4,*/*");
  ExpectPlain("application/openmetrics-text;q=0.5,text/*;q=0.6,*/*;q=0.1");
  ExpectPlain("application/openmetrics-text;q=0");
}

TEST(AcceptedFormatTest, AnotherVersionIsNotPromised) {
  ExpectPlain("application/openmetrics-text;version=0.0.1,text/plain;q=0.1");
  ExpectPlain("application/openmetrics-text;version=2.0.0");
}

TEST(AcceptedFormatTest, WhatMakesNoSenseCountsForNothing) {
  ExpectPlain("application/openmetrics-text;q=high,text/plain;q=0.1");
  ExpectPlain("application/openmetrics-text;q=-1");
  ExpectPlain("application/openmetrics-text;q=nan");
  ExpectPlain(";;,,=,q=1");
  ExpectOpen("text/plain;q=0.5;q,,application/openmetrics-text;;=");
}

}  // namespace accept_test
}  // namespace verbena::internal
