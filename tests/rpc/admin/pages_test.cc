// The pages of the admin server tell what a report says: pure functions, on reports that are made
// up.

#include "verbena/rpc/admin/pages.h"

#include <gmock/gmock.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace pages_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr TimePoint kNow{std::chrono::hours(1)};

DeviceStats StatsOf(const std::string& device, const std::string& kind) {
  DeviceStats stats;
  stats.device = device;
  stats.kind = kind;
  return stats;
}

// One executor and one server, over shared memory, an RDMA device, and TCP in reserve.
RuntimeReport Healthy() {
  RuntimeReport report{.time = kNow};
  report.devices = {{.name = "soft0", .kind = "soft"},
                    {.name = "mlx5_0", .kind = "RoCE v2", .is_rdma = true},
                    {.name = "tcp0", .kind = "tcp", .in_reserve = true}};
  report.servers = {{.address = "10.0.0.7:4000"}};
  report.servers[0].stats.calls = 1000;
  ExecutorReport executor{.time = kNow - milliseconds(1)};
  executor.devices = {StatsOf("mlx5_0", "RoCE v2")};
  executor.devices[0].endpoint.links = 3;
  executor.devices[0].endpoint.traffic.frames_sent = 500;
  executor.pools = {{.device = "mlx5_0", .pool = "send", .budget = 1 << 20, .in_use = 4096}};
  report.executors = {executor};
  return report;
}

Readiness Judge(const RuntimeReport& report, const AdminOptions& options = {}) {
  return JudgeReadiness(report, options, absl::OkStatus());
}

std::string Page(const RuntimeReport& report, const RuntimeReport* before = nullptr) {
  const StatusFacts then = {.report = before == nullptr ? RuntimeReport{} : *before};
  return StatusPage({.report = report}, before == nullptr ? nullptr : &then, Judge(report));
}

boost::json::value Json(const RuntimeReport& report,
                        const std::vector<MethodReport>& methods = {}) {
  return boost::json::parse(StatusJson({.report = report, .methods = methods}, Judge(report)));
}

// 100 calls of 2 µs, of which 3 have failed, and one that goes on.
MethodReport Reads(bool is_served = true) {
  return {.name = "store.Store/Read",
          .is_served = is_served,
          .begun = 101,
          .failed = {{"NOT_FOUND", 2}, {"ABORTED", 1}},
          .times = {{.begin = 1.9e-6, .end = 2.1e-6, .count = 100}}};
}

TEST(ReadinessTest, AHealthyProcessIsReady) {
  const Readiness readiness = Judge(Healthy());
  EXPECT_THAT(readiness.reasons, IsEmpty());
  EXPECT_THAT(readiness.degraded, IsEmpty());
}

TEST(ReadinessTest, ALostDeviceIsDegradedWhileAnotherServes) {
  RuntimeReport report = Healthy();
  report.devices[1].lost = absl::UnavailableError("mlx5_0 has failed");
  const Readiness readiness = Judge(report);
  EXPECT_TRUE(readiness.ready());
  EXPECT_THAT(readiness.degraded, ElementsAre("mlx5_0 has failed"));
  EXPECT_FALSE(Judge(report, {.degraded_is_unready = true}).ready());
}

TEST(ReadinessTest, ADeviceInReserveMayStillServe) {
  RuntimeReport report = Healthy();
  report.devices[0].lost = report.devices[1].lost = absl::UnavailableError("gone");
  EXPECT_TRUE(Judge(report).ready());
  report.devices.pop_back();
  EXPECT_THAT(Judge(report).reasons, ElementsAre("no device is in service"));
}

TEST(ReadinessTest, LinksOverTcpBesideAnRdmaDeviceAreDegraded) {
  RuntimeReport report = Healthy();
  report.devices[2].in_reserve = false;
  report.executors[0].devices.push_back(StatsOf("tcp0", "tcp"));
  report.executors[0].devices[1].endpoint.links = 2;
  report.executors[0].devices[0].passed_over = "10.0.0.9:4000: no answer in 1 s";
  EXPECT_THAT(Judge(report).degraded,
              ElementsAre("2 links go over TCP although there is mlx5_0, which was passed over for "
                          "10.0.0.9:4000: no answer in 1 s"));
  report.devices.erase(report.devices.begin() + 1);
  EXPECT_THAT(Judge(report).degraded, IsEmpty()) << "nobody wanted RDMA";
}

TEST(StatusPageTest, NeedsNothingFromElsewhereAndIsLightAndDark) {
  const std::string page = Page(Healthy());
  for (const char* other : {"<script", "http:", "https:", "url(", "src=", "<link", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(other)));
  }
  EXPECT_THAT(page, HasSubstr("color-scheme: light dark"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
}

TEST(StatusPageTest, WordsOfPeersAreNoMarkup) {
  RuntimeReport report = Healthy();
  report.executors[0].devices[0].passed_over = "<img src=x onerror=\"alert('x')\">&";
  const std::string page = Page(report);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("&lt;img src=x onerror=&quot;alert('x')&quot;&gt;&amp;"));
}

TEST(StatusPageTest, RatesAreThoseSinceAnEarlierReport) {
  RuntimeReport before = Healthy();
  before.time = kNow - seconds(2);
  before.servers[0].stats.calls = 200;
  const RuntimeReport report = Healthy();
  EXPECT_THAT(Page(report, &before), HasSubstr("<td>400</td><td>1000</td>"));
  EXPECT_THAT(Page(report, &before), HasSubstr("Rates, p50 and p99 are those of the last 2.0 s."));
  EXPECT_THAT(Page(report), HasSubstr("<td></td><td>1000</td>"));
}

TEST(StatusPageTest, MethodsHaveTheirTimesAndFailuresByCode) {
  const RuntimeReport report = Healthy();
  const std::string page =
      StatusPage({.report = report, .methods = {Reads()}}, nullptr, Judge(report));
  EXPECT_THAT(page, HasSubstr("<td>store.Store/Read</td><td></td><td>2.00 µs</td><td>2.09 µs</td>"
                              "<td>1</td><td>101</td><td>NOT_FOUND 2, ABORTED 1</td>"));
  EXPECT_LT(page.find("Calls served"), page.find("store.Store/Read"));
  EXPECT_LT(page.find("store.Store/Read"), page.find("Calls made"));
}

TEST(StatusPageTest, TimesAreThoseSinceEarlierFacts) {
  RuntimeReport report = Healthy();
  StatusFacts before{.report = report, .methods = {Reads(), Reads(/*is_served=*/false)}};
  before.report.time = kNow - seconds(2);
  StatusFacts now{.report = report, .methods = {Reads(), Reads(/*is_served=*/false)}};
  now.methods[0].begun += 400;
  now.methods[0].times.push_back({.begin = 3e-3, .end = 3.1e-3, .count = 400});
  const std::string page = StatusPage(now, &before, Judge(report));
  EXPECT_THAT(page, HasSubstr("<td>200</td><td>3.05 ms</td><td>3.10 ms</td>"));
  EXPECT_THAT(page, HasSubstr("<td>0</td><td></td><td></td><td>1</td><td>101</td>"))
      << "the client's side had no calls since";
}

TEST(StatusPageTest, AnExecutorThatDoesNotAnswerIsNamed) {
  RuntimeReport report = Healthy();
  EXPECT_THAT(Page(report), Not(HasSubstr("does not answer")));
  report.executors[0].time = kNow - seconds(3);
  EXPECT_THAT(Page(report), HasSubstr("executor 0 does not answer: its values are 3.0 s old"));
}

TEST(StatusPageTest, TheBusiestPeersComeFirst) {
  RuntimeReport report = Healthy();
  for (int i = 0; i < 20; ++i) {
    PeerReport peer{.source = "10.0.1." + std::to_string(i), .links = 1};
    peer.traffic.frames_sent = i;
    report.executors[0].peers.push_back(peer);
  }
  const std::string page = Page(report);
  EXPECT_LT(page.find("<td>10.0.1.19</td>"), page.find("<td>10.0.1.18</td>"));
  EXPECT_THAT(page, HasSubstr("<td>10.0.1.10</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<td>10.0.1.9</td>"))) << "ten are shown";
}

TEST(StatusJsonTest, SumsTheExecutors) {
  RuntimeReport report = Healthy();
  report.executors.push_back(report.executors[0]);
  report.executors.push_back({});
  const boost::json::value json = Json(report);
  EXPECT_EQ(json.at("devices").at(1).at("links").to_number<int>(), 6);
  EXPECT_EQ(json.at("devices").at(1).at("traffic").at("frames_sent").to_number<int>(), 1000);
  EXPECT_EQ(json.at("memory").at(0).at("in_use").to_number<int>(), 8192);
  EXPECT_EQ(json.at("servers").at(0).at("calls").to_number<int>(), 1000);
  EXPECT_TRUE(json.at("executors").at(2).at("age_seconds").is_null());
}

TEST(StatusJsonTest, MethodsHaveAllThatProgramsComputeWith) {
  const boost::json::value method = Json(Healthy(), {Reads()}).at("methods").at(0);
  EXPECT_EQ(method.at("side").as_string(), "server");
  EXPECT_EQ(method.at("ended").to_number<int>(), 100);
  EXPECT_EQ(method.at("under_way").to_number<int>(), 1);
  EXPECT_EQ(method.at("failed").at("NOT_FOUND").to_number<int>(), 2);
  EXPECT_NEAR(method.at("p50_seconds").as_double(), 2e-6, 1e-7);
  EXPECT_EQ(method.at("times").at(0).at(2).to_number<int>(), 100);
}

TEST(StatusJsonTest, SaysWhyItIsNotReady) {
  RuntimeReport report = Healthy();
  report.servers[0].shutting_down = true;
  const boost::json::value json = Json(report);
  EXPECT_FALSE(json.at("ready").as_bool());
  EXPECT_EQ(json.at("not_ready").at(0).as_string(), "the server 10.0.0.7:4000 shuts down");
}

}  // namespace pages_test
}  // namespace verbena::internal
