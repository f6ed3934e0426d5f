// What a runtime has counted comes from all its executors, and its text has the reports that are
// given.

#include "verbena/rpc/shard/metrics_of.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "tests/rpc/testing_service.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {
namespace metrics_of_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

class MetricsOfTest : public RpcTest {
 protected:
  Task<absl::Status> FailOnce() {
    testing::FailRequest request;
    request.set_code(static_cast<int32_t>(absl::StatusCode::kNotFound));
    co_return (co_await stub_->Fail(request)).status();
  }
};

TEST_F(MetricsOfTest, AddsUpTheExecutors) {
  StartServer();
  StartClient({.executors = 2});
  EXPECT_TRUE(Run(EchoOnce(1, "data"), 0).ok());
  EXPECT_TRUE(Run(EchoOnce(2, "data"), 1).ok());
  EXPECT_TRUE(absl::IsNotFound(Run(FailOnce())));
  const std::vector<MethodReport> methods = MethodReportsOf(*client_runtime_);
  ASSERT_EQ(methods.size(), 2u);
  const MethodReport& echo = methods[0];
  EXPECT_EQ(echo.name, "verbena.testing.Testing/Echo");
  EXPECT_FALSE(echo.is_served);
  EXPECT_EQ(echo.begun, 2u);
  EXPECT_EQ(echo.ended(), 2u);
  EXPECT_THAT(echo.failed, IsEmpty());
  EXPECT_GT(QuantileOf(echo.times, 0.5), 0);
  EXPECT_THAT(methods[1].failed, ElementsAre(Pair("NOT_FOUND", 1u)));
  EXPECT_EQ(methods[1].under_way(), 0u);
  for (const MethodReport& served : MethodReportsOf(*server_runtime_)) {
    EXPECT_TRUE(served.is_served) << served.name;
  }
}

TEST_F(MetricsOfTest, IsEmptyIfCallsAreNotCounted) {
  StartServer();
  StartClient({.metrics = false});
  EXPECT_TRUE(Run(EchoOnce(1, "data")).ok());
  EXPECT_THAT(MethodReportsOf(*client_runtime_), IsEmpty());
}

TEST_F(MetricsOfTest, TheTextHasTheReportsThatAreGiven) {
  StartBoth();
  RuntimeReport report;
  report.executors.resize(2);
  report.executors[0].loop.turns = 987'654'321'000;
  report.executors[0].time = Clock::Real().Now();
  const std::string text = MetricsTextOf(*client_runtime_, MetricsFormat::kPrometheus, report);
  EXPECT_THAT(text, HasSubstr("verbena_executor_turns_total{executor=\"0\"} 987654321000\n"));
  EXPECT_THAT(text, Not(HasSubstr("executor=\"1\""))) << "it has not answered";
}

}  // namespace metrics_of_test
}  // namespace verbena::internal
