// The table of a process: its methods with rates, times and failures, what it does without, its
// devices and memory. Wrong JSON and admin servers that give no answer are one line each.

#include "tools/verbena/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/admin/http_client.h"
#include "tests/tools/verbena/served_command.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/admin/http.h"
#include "verbena/rpc/shard/call_report.h"

namespace verbena::command {
namespace stats_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A process that has had 101 calls, by its clock at 10 s.
constexpr const char* kStatus = R"({
  "version": "0.1.0", "ready": false, "not_ready": ["the server 10.0.0.7:4000 shuts down"],
  "degraded": ["mlx5_0 has failed"], "time_seconds": 10,
  "methods": [{"method": "store.Store/Read", "side": "server", "begun": 101, "ended": 100,
               "under_way": 1, "failed": {"NOT_FOUND": 2}, "p50_seconds": 2e-6,
               "p99_seconds": 2e-6, "times": [[1.9e-6, 2.1e-6, 100]]}],
  "servers": [], "peers": [],
  "devices": [{"device": "mlx5_0", "network": "RoCE v2", "state": "in service", "links": 3,
               "links_lost": 1}],
  "memory": [{"device": "mlx5_0", "pool": "send", "in_use": 1048576, "budget": 4194304,
              "waiting": 7}],
  "executors": [{"age_seconds": 0.001}, {"age_seconds": 3.5}, {"age_seconds": null}]})";

ProcessStats Parsed() {
  absl::StatusOr<ProcessStats> stats = ParseStats(kStatus);
  EXPECT_TRUE(stats.ok()) << stats.status();
  return *std::move(stats);
}

TEST(StatsTableTest, ShowsTheProcess) {
  EXPECT_EQ(
      StatsTable(Parsed(), nullptr),
      "Verbena 0.1.0: not ready\n"
      "not ready: the server 10.0.0.7:4000 shuts down\n"
      "degraded: mlx5_0 has failed\n"
      "executor 1 has not answered in time: its last answer is 3.5 s old\n"
      "executor 2 has not answered yet\n"
      "\n"
      "method              side  calls/s      p50      p99  under way  calls  failed since the "
      "start\n"
      "store.Store/Read  server        -  2.00 µs  2.09 µs          1    101  NOT_FOUND 2\n"
      "\n"
      "mlx5_0 (RoCE v2)     in service, 3 links, 1 lost\n"
      "mlx5_0, send memory  1.0 MiB of 4.0 MiB in use, 7 calls wait\n");
}

TEST(StatsTableTest, RatesAndTimesAreThoseSinceTheLastOne) {
  const ProcessStats before = Parsed();
  ProcessStats now = before;
  now.seconds += 2;
  now.methods[0].begun += 400;
  now.methods[0].times.push_back({.begin = 3e-3, .end = 3.1e-3, .count = 400});
  EXPECT_THAT(StatsTable(now, &before),
              HasSubstr("server      200  3.05 ms  3.10 ms          1    501  NOT_FOUND 2\n"));
  EXPECT_THAT(StatsTable(before, &before), HasSubstr("-    -          1    101"));
}

TEST(StatsTableTest, AProcessThatStartedAnewHasNoRates) {
  ProcessStats now = Parsed();
  const ProcessStats before = now;
  now.seconds += 2;
  now.methods[0].begun = 5;
  now.methods[0].times = {};
  EXPECT_THAT(StatsTable(now, &before), HasSubstr("server        -    -    -          5"));
}

// The method of the first stats, with another side or name.
internal::MethodReport Method(const std::string& name, bool is_served, uint64_t begun) {
  internal::MethodReport method = Parsed().methods[0];
  method.name = name;
  method.is_served = is_served;
  method.begun = begun;
  return method;
}

TEST(StatsTableTest, SidesOfOneMethodHaveRatesOfTheirOwn) {
  ProcessStats before = Parsed();
  before.methods = {Method("s.S/Read", true, 200), Method("s.S/Read", false, 1000)};
  ProcessStats now = before;
  now.seconds += 2;
  now.methods[0].begun += 20;
  now.methods[1].begun += 400;
  EXPECT_THAT(StatsTable(now, &before), HasSubstr("s.S/Read  server       10  "));
  EXPECT_THAT(StatsTable(now, &before), HasSubstr("s.S/Read  client      200  "));
}

TEST(StatsTableTest, TheBusiestMethodsAreFirstOnceThereAreRates) {
  ProcessStats before = Parsed();
  before.methods = {Method("s.S/Idle", true, 100), Method("s.S/Hang", true, 170),
                    Method("s.S/Read", true, 100), Method("s.S/Write", true, 100)};
  ProcessStats now = before;
  now.seconds += 2;
  now.methods[2].begun += 20;
  now.methods[3].begun += 30;
  const auto order = [](const std::string& table) {
    std::vector<std::pair<size_t, std::string>> places;
    for (const std::string name : {"Idle", "Hang", "Read", "Write"}) {
      places.emplace_back(table.find("s.S/" + name), name);
    }
    std::ranges::sort(places);
    std::vector<std::string> names;
    names.reserve(places.size());
    for (auto& [place, name] : places) names.push_back(std::move(name));
    return names;
  };
  EXPECT_THAT(order(StatsTable(now, &before)), ElementsAre("Write", "Read", "Hang", "Idle"));
  EXPECT_THAT(order(StatsTable(now, nullptr)), ElementsAre("Idle", "Hang", "Read", "Write"));
}

TEST(StatsTableTest, AProcessWithoutCallsIsToldInWords) {
  ProcessStats now = Parsed();
  now.methods.clear();
  EXPECT_THAT(StatsTable(now, nullptr), HasSubstr("no calls are counted"));
}

TEST(ParseStatsTest, NamesWhatIsWrong) {
  EXPECT_THAT(ParseStats("<html>").status().ToString(), HasSubstr("no JSON: "));
  EXPECT_THAT(ParseStats("[]").status().ToString(), HasSubstr("\"version\" is not there"));
  for (const std::string part : {"\"methods\"", "\"begun\": 101", "\"budget\": 4194304",
                                 "[1.9e-6, 2.1e-6, 100]", "\"NOT_FOUND\": 2"}) {
    std::string json = kStatus;
    const size_t at = json.find(part);
    ASSERT_NE(at, std::string::npos) << part;
    json.replace(at, part.size(),
                 part == "\"methods\"" ? "\"methodes\""
                 : part[0] == '['      ? "[1.9e-6, 100]"
                                       : part.substr(0, part.find(':')) + ": -1");
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStats(json).status())) << json;
  }
}

// Items that come after a wrong one are not looked at: each would get its place into the message.
TEST(ParseStatsTest, StopsAtTheFirstWrongItem) {
  for (const auto& [part, with, place] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"\"methods\": [", "\"methods\": [{}, {}, ", "methods[0].method"},
           {"[1.9e-6, 2.1e-6, 100]", "[0, 1, 2], [0, 1], [0, 1]", "methods[0].times[1]"},
           {"\"NOT_FOUND\": 2", "\"NOT_FOUND\": -1, \"ABORTED\": -1", "methods[0].failed"},
           {"{\"age_seconds\": 3.5}", "{}, {}", "executors[1].age_seconds"},
           {"[\"mlx5_0 has failed\"]", "[1, 2]", "degraded[0]"}}) {
    std::string json = kStatus;
    const size_t at = json.find(part);
    ASSERT_NE(at, std::string::npos) << part;
    json.replace(at, part.size(), with);
    EXPECT_THAT(ParseStats(json).status().ToString(),
                HasSubstr("its field \"" + place + "\" is not there"));
  }
}

TEST(ParseStatsTest, TextsOfTheServerCommandNoTerminal) {
  std::string json = kStatus;
  json.replace(json.find("has failed"), 3, "\\u001b[2J");
  const absl::StatusOr<ProcessStats> stats = ParseStats(json);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_THAT(StatsTable(*stats, nullptr), Not(HasSubstr("\x1b")));
}

class StatsTest : public ServedCommand {
 protected:
  void StartAdmin() {
    Serve();
    absl::StatusOr<std::unique_ptr<Admin>> admin =
        Admin::Start(*runtime_, {.socket = path_.text()});
    ASSERT_TRUE(admin.ok()) << admin.status();
    admin_ = *std::move(admin);
  }
  // It goes before the runtime.
  ~StatsTest() override { admin_.reset(); }

  static void ExpectFailure(const Result& result, int exit, const std::string& text) {
    EXPECT_EQ(exit, result.exit);
    EXPECT_EQ("", result.output);
    EXPECT_THAT(result.error, StartsWith("verbena: "));
    EXPECT_THAT(result.error, HasSubstr(text));
    EXPECT_EQ(1, std::count(result.error.begin(), result.error.end(), '\n')) << result.error;
  }

  const internal::SocketPath path_;
  std::unique_ptr<Admin> admin_;
};

TEST_F(StatsTest, ShowsAProcessOrItsMetrics) {
  StartAdmin();
  EXPECT_EQ(0, Call("Testing/Echo", {"{}"}).exit);
  for (const std::string& admin : {admin_->address(), "unix:" + path_.text()}) {
    const Result table = Run({"stats", admin});
    EXPECT_EQ(0, table.exit) << table.error;
    EXPECT_THAT(table.output, HasSubstr(": ready\n"));
    EXPECT_THAT(table.output, HasSubstr("verbena.testing.Testing/Echo"));
  }
  const Result metrics = Run({"stats", admin_->address(), "--metrics"});
  EXPECT_EQ(0, metrics.exit) << metrics.error;
  EXPECT_THAT(metrics.output, StartsWith("# HELP verbena_build_info"));
}

TEST_F(StatsTest, TopShowsSoManyTables) {
  StartAdmin();
  std::ostringstream output;
  std::ostringstream error;
  Terminal terminal{.output = output, .error = error};
  const TopArguments twice{
      .admin = admin_->address(), .count = 2, .interval = std::chrono::milliseconds(0)};
  EXPECT_EQ(0, RunTop(twice, terminal)) << error.str();
  const std::string text = output.str();
  const size_t first = text.find("Verbena ");
  const size_t second = text.find("Verbena ", first + 1);
  ASSERT_NE(second, std::string::npos);
  EXPECT_EQ(text.find("Verbena ", second + 1), std::string::npos);
}

// An admin server that gives one answer after another, and the last one again and again.
class Answers {
 public:
  explicit Answers(std::vector<internal::AdminAnswer> answers) : answers_(std::move(answers)) {
    absl::StatusOr<std::unique_ptr<internal::AdminHttp>> http =
        internal::AdminHttp::Listen({.address = "127.0.0.1:0"});
    EXPECT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
    EXPECT_EQ(absl::OkStatus(), http_->Serve([this](const internal::AdminRequest&,
                                                    const internal::AdminHttp::Reply& reply) {
      reply(answers_[std::min(given_++, answers_.size() - 1)]);
    }));
  }
  std::string address() const { return http_->address(); }

 private:
  const std::vector<internal::AdminAnswer> answers_;
  size_t given_ = 0;                           // on the thread of http_
  std::unique_ptr<internal::AdminHttp> http_;  // ends its thread first
};

TEST_F(StatsTest, TopGoesOnAfterAPollWithoutAnAnswer) {
  const internal::AdminAnswer good{.body = kStatus};
  const internal::AdminAnswer bad = internal::AdminLine(503, "later");
  for (const bool ends_well : {true, false}) {
    const Answers server({good, bad, ends_well ? good : bad});
    std::ostringstream output;
    std::ostringstream error;
    Terminal terminal{.output = output, .error = error};
    const TopArguments twice{
        .admin = server.address(), .count = 2, .interval = std::chrono::milliseconds(0)};
    EXPECT_EQ(ends_well ? 0 : 1, RunTop(twice, terminal));
    const std::string line =
        "verbena: " + server.address() + " refuses /status.json: 503 later\n\n";
    EXPECT_THAT(output.str(), StartsWith(line + (ends_well ? "Verbena 0.1.0" : line)));
    EXPECT_EQ("", error.str());
  }
}

TEST_F(StatsTest, AStatusThatIsTooLargeIsRefused) {
  const Answers server({{.body = std::string((8 << 20) + 1, ' ')}});
  ExpectFailure(Run({"stats", server.address()}), 1, "has more than 8388608 bytes");
}

TEST_F(StatsTest, SaysWhyThereIsNoAnswer) {
  StartAdmin();
  ExpectFailure(Run({"stats", "9180"}), kMistake, "'9180' is no admin server");
  ExpectFailure(Run({"top", "/run/store/admin.sock"}), kMistake, "unix:PATH");
  ExpectFailure(Run({"top", admin_->address(), "--count", "-1"}), kMistake, "--count");
  const std::string gone = admin_->address();
  admin_.reset();
  ExpectFailure(Run({"stats", gone}), 1, gone);
  ExpectFailure(Run({"stats", gone, "--metrics"}), 1, gone);
  ExpectFailure(Run({"top", gone, "--count", "1"}), 1, gone);
}

TEST_F(StatsTest, AStatusOfAnotherKindIsNamed) {
  const Answers other({internal::AdminLine(200, R"({"version": "0.1.0"})")});
  ExpectFailure(
      Run({"stats", other.address()}), 1,
      other.address() +
          " gives a /status.json that is no status of Verbena (its field \"ready\" is not "
          "there, or is of another kind)");
}

}  // namespace stats_test
}  // namespace verbena::command
