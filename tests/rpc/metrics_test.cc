// The text of a runtime's metrics has each call once, by method, code and outcome, summed over its
// executors; its program's metrics, unless their names are taken or no names; and it comes also
// while an executor is blocked.

#include "verbena/rpc/metrics.h"

#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/manual_clock.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/task.h"

namespace verbena {
namespace metrics_test {

using ::testing::HasSubstr;
using ::testing::Not;

// The value of a sample, whose name has its labels; -1 if there is none.
double ValueOf(const std::string& text, std::string_view sample) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(fmt::format("{} ", sample))) continue;
    return std::stod(line.substr(sample.size() + 1));
  }
  return -1;
}

std::string Ended(std::string_view side, std::string_view method, std::string_view code,
                  std::string_view part = "_count") {
  return fmt::format(
      "rpc_{}_call_duration_seconds{}{{rpc_method=\"verbena.testing.Testing/{}\","
      "rpc_response_status_code=\"{}\"}}",
      side, part, method, code);
}

// Each call of a server takes so long by its clock, in which the executor does nothing else.
class Spinning final : public ServerInterceptor {
 public:
  Spinning(ManualClock& clock, Duration time) : clock_(clock), time_(time) {}
  Task<absl::Status> Intercept(ServerCallView&, ServerNext next) override {
    clock_.Advance(time_);
    co_return co_await next();
  }

 private:
  ManualClock& clock_;
  const Duration time_;
};

class MetricsTest : public RpcTest {
 protected:
  Task<absl::Status> FailOnce(absl::StatusCode code, bool not_executed) {
    testing::FailRequest request;
    request.set_code(static_cast<int32_t>(code));
    request.set_message("as asked");
    request.set_not_executed(not_executed);
    co_return (co_await stub_->Fail(request)).status();
  }
  std::string ClientText() const {
    return client_runtime_->metrics().Text(MetricsFormat::kPrometheus);
  }
  std::string ServerText() const {
    return server_runtime_->metrics().Text(MetricsFormat::kPrometheus);
  }
  // A server counts a call only once the response is posted, perhaps after the client has it.
  void AwaitServed(const std::string& sample, double value) {
    Eventually([&] { return ValueOf(ServerText(), sample) == value; }, sample.c_str());
  }

  ManualClock clock_;
};

TEST_F(MetricsTest, EachCallIsCountedByItsMethodAndCode) {
  StartBoth();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Run(EchoOnce(i, "data")).ok());
  for (int i = 0; i < 3; ++i) (void)Run(FailOnce(absl::StatusCode::kNotFound, false));
  (void)Run(FailOnce(absl::StatusCode::kAborted, true));
  const std::string text = ClientText();
  EXPECT_EQ(ValueOf(text, Ended("client", "Echo", "OK")), 5);
  EXPECT_EQ(ValueOf(text, Ended("client", "Fail", "NOT_FOUND")), 3);
  EXPECT_EQ(ValueOf(text, Ended("client", "Fail", "ABORTED")), 1);
  EXPECT_EQ(ValueOf(text, Ended("client", "Fail", "OK")), 0) << "calls under way are begun less it";
  EXPECT_EQ(ValueOf(text, Ended("client", "Echo", "NOT_FOUND")), -1) << "no call has ended so";
  const std::string fail = "{rpc_method=\"verbena.testing.Testing/Fail\"";
  EXPECT_EQ(ValueOf(text, "verbena_client_calls_begun_total" + fail + "}"), 4);
  EXPECT_EQ(ValueOf(text, "verbena_client_outcomes_total" + fail + ",outcome=\"executed\"}"), 3);
  EXPECT_EQ(ValueOf(text, "verbena_client_outcomes_total" + fail + ",outcome=\"not_executed\"}"),
            1);
  AwaitServed(Ended("server", "Echo", "OK"), 5);
  AwaitServed(Ended("server", "Fail", "NOT_FOUND"), 3);
  AwaitServed(Ended("server", "Fail", "ABORTED"), 1);
  AwaitServed("verbena_server_calls_begun_total" + fail + "}", 4);
  EXPECT_EQ(ValueOf(ServerText(), Ended("client", "Echo", "OK")), -1)
      << "the server's runtime makes no calls";
}

TEST_F(MetricsTest, BytesOfMessagesAreThoseOnTheWire) {
  StartBoth();
  testing::EchoRequest request;
  request.set_number(7);
  request.set_data(std::string(1000, 'x'));
  EXPECT_TRUE(Run(EchoOnce(7, request.data())).ok());
  const std::string echo =
      "verbena_server_message_bytes_total{rpc_method=\"verbena.testing.Testing/Echo\",message=";
  AwaitServed(echo + "\"request\"}", static_cast<double>(request.ByteSizeLong()));
  AwaitServed(echo + "\"reply\"}", static_cast<double>(request.ByteSizeLong()));
}

// A message that does not fit a frame is freed before the call ends.
TEST_F(MetricsTest, BytesOfALargeMessageCount) {
  StartBoth();
  constexpr size_t kBytes = 1 << 20;
  EXPECT_TRUE(Run(EchoOnce(7, std::string(kBytes, 'x'))).ok());
  testing::EchoRequest request;
  request.set_number(7);
  request.set_data(std::string(kBytes, 'x'));
  const std::string echo =
      "verbena_server_message_bytes_total{rpc_method=\"verbena.testing.Testing/Echo\",message=";
  AwaitServed(echo + "\"request\"}", static_cast<double>(request.ByteSizeLong()));
  AwaitServed(echo + "\"reply\"}", static_cast<double>(request.ByteSizeLong()));
}

TEST_F(MetricsTest, TheExecutorsAreAddedUp) {
  StartServer();
  StartClient({.executors = 2});
  EXPECT_TRUE(Run(EchoOnce(1, "data"), 0).ok());
  EXPECT_TRUE(Run(EchoOnce(2, "data"), 1).ok());
  EXPECT_EQ(ValueOf(ClientText(), Ended("client", "Echo", "OK")), 2);
  Eventually(
      [&] { return ValueOf(ClientText(), "verbena_executor_turns_total{executor=\"1\"}") >= 0; },
      "a report of the second executor");
}

TEST_F(MetricsTest, TimeThatAHandlerSpinsIsTheCalls) {
  StartServer({.interceptors = {std::make_shared<Spinning>(clock_, std::chrono::milliseconds(3))}},
              {.clock = &clock_});
  StartClient();
  EXPECT_TRUE(Run(EchoOnce(1, "data")).ok());
  AwaitServed(Ended("server", "Echo", "OK"), 1);
  const std::string text = ServerText();
  EXPECT_NEAR(ValueOf(text, Ended("server", "Echo", "OK", "_sum")), 0.003, 1e-8);
  const auto at_most = [&text](std::string_view bound) {
    const std::string labels = Ended("server", "Echo", "OK", "_bucket");
    return ValueOf(text, fmt::format("{},le=\"{}\"}}", labels.substr(0, labels.size() - 1), bound));
  };
  EXPECT_EQ(at_most("2.5e-07"), 0);
  EXPECT_EQ(at_most("0.002048"), 0);
  EXPECT_EQ(at_most("0.004096"), 1);
  EXPECT_EQ(at_most("16.777216"), 1);
  EXPECT_EQ(at_most("+Inf"), 1);
}

TEST_F(MetricsTest, ARefusedCallCountsByItsBound) {
  StartServer({.max_concurrent_calls = 0});
  StartClient();
  EXPECT_TRUE(absl::IsResourceExhausted(Run(EchoOnce(1, "data"))));
  const std::string text = ServerText();
  EXPECT_EQ(ValueOf(text, "verbena_server_refusals_total{bound=\"executor\"}"), 1);
  EXPECT_EQ(ValueOf(text, "verbena_server_refusals_total{bound=\"queue\"}"), 0);
  EXPECT_EQ(ValueOf(text, Ended("server", "Echo", "RESOURCE_EXHAUSTED")), 1);
  EXPECT_EQ(ValueOf(ClientText(), Ended("client", "Echo", "RESOURCE_EXHAUSTED")), 1);
}

TEST_F(MetricsTest, AttemptsOfACallAreOneCallOfTheClient) {
  StartServer();
  StartClient(
      {}, {.service_config = {
               .methods = {{.retry = RetryPolicy{.max_attempts = 3,
                                                 .initial_backoff = std::chrono::milliseconds(1),
                                                 .max_backoff = std::chrono::milliseconds(2)}}}}});
  EXPECT_TRUE(absl::IsUnavailable(Run(FailOnce(absl::StatusCode::kUnavailable, true))));
  const std::string text = ClientText();
  EXPECT_EQ(ValueOf(text, Ended("client", "Fail", "UNAVAILABLE")), 1);
  const std::string further =
      "verbena_client_further_attempts_total{rpc_method=\"verbena.testing.Testing/Fail\",kind=";
  EXPECT_EQ(ValueOf(text, further + "\"retry\"}"), 2);
  EXPECT_EQ(ValueOf(text, further + "\"hedge\"}"), 0);
  AwaitServed(Ended("server", "Fail", "UNAVAILABLE"), 3);
}

TEST_F(MetricsTest, ACallThatIsDestroyedHasEnded) {
  StartBoth();
  const auto abandon = [this]() -> Task<absl::Status> {
    testing::WaitRequest request;
    testing::Empty reply;
    Event begins;
    TaskScope calls(co_await CurrentContext());
    calls.Spawn([&]() -> Task<void> {
      begins.Set();
      (void)co_await stub_->Wait(request, reply);
    });
    co_return co_await begins.Wait();
  };
  ASSERT_TRUE(Run(EchoOnce(1, "connects")).ok());
  ASSERT_TRUE(Run(abandon()).ok());
  EXPECT_EQ(ValueOf(ClientText(), Ended("client", "Wait", "CANCELLED")), 1);
}

// The call has ended, and its caller is destroyed before it goes on.
TEST_F(MetricsTest, ACallWhoseStatusNobodyTakesHasEnded) {
  StartBoth();
  const auto abandon = [this]() -> Task<absl::Status> {
    testing::WaitRequest request;
    testing::Empty reply;
    Event begins;
    TaskScope calls(co_await CurrentContext());
    calls.Spawn([&]() -> Task<void> {
      begins.Set();
      (void)co_await stub_->Wait(request, reply);
    });
    VERBENA_CO_RETURN_IF_ERROR(co_await begins.Wait());
    calls.RequestCancel();
    co_return absl::OkStatus();
  };
  ASSERT_TRUE(Run(EchoOnce(1, "connects")).ok());
  ASSERT_TRUE(Run(abandon()).ok());
  EXPECT_EQ(ValueOf(ClientText(), Ended("client", "Wait", "CANCELLED")), 1);
}

TEST_F(MetricsTest, ACallWhoseInterceptorThrowsHasFailed) {
  class Throwing final : public ClientInterceptor {
    Task<absl::Status> Intercept(ClientCallView&, ClientNext) override {
      throw std::runtime_error("out of cheese");
      co_return absl::OkStatus();
    }
  };
  StartServer();
  StartClient({}, {.interceptors = {std::make_shared<Throwing>()}});
  const auto call = [&]() -> Task<bool> {
    try {
      (void)co_await EchoOnce(1, "data");
    } catch (const std::runtime_error&) {
      co_return true;
    }
    co_return false;
  };
  EXPECT_TRUE(Run(call()));
  EXPECT_EQ(ValueOf(ClientText(), Ended("client", "Echo", "INTERNAL")), 1);
  EXPECT_EQ(ValueOf(ClientText(), Ended("client", "Echo", "CANCELLED")), -1);
}

TEST_F(MetricsTest, WithoutMetricsNoCallIsCountedAndTheProgramsAreThere) {
  StartServer({}, {.metrics = false});
  StartClient({.metrics = false});
  ASSERT_TRUE(client_runtime_->metrics().AddGauge("heat", "Of the disks.").ok());
  CallInfo info;
  const auto call = [&]() -> Task<absl::Status> {
    testing::EchoRequest request;
    co_return (co_await stub_->Echo(request, {.info = &info})).status();
  };
  EXPECT_TRUE(Run(call()).ok());
  const std::string text = ClientText();
  EXPECT_THAT(text, Not(HasSubstr("rpc_method")));
  EXPECT_THAT(ServerText(), Not(HasSubstr("refusals"))) << "0 would say that none was refused";
  EXPECT_EQ(ValueOf(text, "heat"), 0);
}

// It takes no answer from the executor, which waits in `let_go`.
TEST_F(MetricsTest, TheTextComesWhileAnExecutorIsBlocked) {
  std::latch blocked(1);
  std::latch let_go(1);
  StartServer();
  StartClient();
  ASSERT_TRUE(Run(EchoOnce(1, "data")).ok());
  const std::string age = "verbena_executor_report_age_seconds{executor=\"0\"}";
  Eventually([&] { return ValueOf(ClientText(), age) >= 0; }, "a report");
  const auto block = [&]() -> Task<void> {
    blocked.count_down();
    let_go.wait();
    co_return;
  };
  JoinHandle<void> waits = client_runtime_->Spawn(block());
  blocked.wait();
  const std::string text = ClientText();
  (void)ClientText();
  EXPECT_EQ(ValueOf(text, Ended("client", "Echo", "OK")), 1);
  EXPECT_GE(ValueOf(text, age), 0);
  let_go.count_down();
  waits.Join();
}

TEST_F(MetricsTest, AReportFollowsEachTextThatAskedForIt) {
  StartBoth();
  (void)ClientText();
  ASSERT_TRUE(Run(EchoOnce(1, "data")).ok());
  std::string device;
  std::string kind;
  for (const DeviceStats& each : client_runtime_->device_stats(0)) {
    if (each.endpoint.links == 0) continue;
    device = each.device;
    kind = each.kind;
  }
  const std::string links = fmt::format("verbena_links{{device=\"{}\",kind=\"{}\"}}", device, kind);
  Eventually([&] { return ValueOf(ClientText(), links) == 1; }, "a report with the link");
  const std::string budget =
      fmt::format("verbena_memory_bytes{{device=\"{}\",pool=\"send\",state=\"budget\"}}", device);
  EXPECT_GT(ValueOf(ClientText(), budget), 0);
}

TEST_F(MetricsTest, TheProgramsMetricsAreInTheText) {
  const auto runtime = *Runtime::Start();
  Metrics& metrics = runtime->metrics();
  MetricCounter* scrubs = *metrics.AddCounter("scrubs_total", "Begun.", {{"disk", "a\"b"}});
  MetricCounter* others = *metrics.AddCounter("scrubs_total", "Begun.", {{"disk", "c"}});
  MetricGauge* heat = *metrics.AddGauge("heat", "Of the disks.");
  MetricHistogram* seeks = *metrics.AddHistogram("seeks", "Seconds.", {0.5, 1});
  scrubs->Add(2);
  others->Add();
  heat->Set(36.5);
  heat->Add(0.25);
  for (const double value : {0.25, 0.5, 0.75, 4.0}) seeks->Observe(value);
  const std::string text = metrics.Text(MetricsFormat::kPrometheus);
  EXPECT_EQ(ValueOf(text, "scrubs_total{disk=\"a\\\"b\"}"), 2);
  EXPECT_EQ(ValueOf(text, "scrubs_total{disk=\"c\"}"), 1);
  EXPECT_EQ(ValueOf(text, "heat"), 36.75);
  EXPECT_EQ(ValueOf(text, "seeks_bucket{le=\"0.5\"}"), 2);
  EXPECT_EQ(ValueOf(text, "seeks_bucket{le=\"1.0\"}"), 3);
  EXPECT_EQ(ValueOf(text, "seeks_bucket{le=\"+Inf\"}"), 4);
  EXPECT_EQ(ValueOf(text, "seeks_sum"), 5.5);
  EXPECT_EQ(ValueOf(text, "seeks_count"), 4);
  EXPECT_THAT(metrics.Text(MetricsFormat::kOpenMetrics), HasSubstr("# TYPE scrubs counter\n"));
}

TEST_F(MetricsTest, ANameThatIsTakenIsRefused) {
  const auto runtime = *Runtime::Start();
  Metrics& metrics = runtime->metrics();
  ASSERT_TRUE(metrics.AddGauge("heat", "Of the disks.", {{"disk", "a"}}).ok());
  ASSERT_TRUE(metrics.AddGauge("seeks_count", "").ok());
  ASSERT_TRUE(metrics.AddCounter("scrubs_total", "").ok());
  const auto expect_taken = [](const absl::Status& status, std::string_view name) {
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(name)));
  };
  expect_taken(metrics.AddGauge("heat", "Of the disks.", {{"disk", "a"}}).status(),
               "heat{disk=\"a\"}");
  expect_taken(metrics.AddHistogram("heat", "", {1}, {{"disk", "b"}}).status(), "heat");
  expect_taken(metrics.AddHistogram("seeks", "", {1}).status(), "seeks_count");
  expect_taken(metrics.AddGauge("scrubs", "").status(), "scrubs");
  expect_taken(metrics.AddGauge("verbena_heat", "").status(), "verbena_heat");
  expect_taken(metrics.AddCounter("rpc_server_total", "").status(), "rpc_server_total");
}

TEST_F(MetricsTest, WhatIsNoNameIsRefused) {
  const auto runtime = *Runtime::Start();
  Metrics& metrics = runtime->metrics();
  const auto expect_invalid = [](const absl::Status& status, std::string_view named) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(named)));
  };
  for (const char* name : {"", "1st", "of disks", "heat{a=\"b\"}",
                           "h\xc3\xa9"
                           "at"}) {
    expect_invalid(metrics.AddGauge(name, "").status(), name);
  }
  expect_invalid(metrics.AddGauge("heat", "", {{"le", "1"}}).status(), "\"le\"");
  expect_invalid(metrics.AddGauge("heat", "", {{"of disk", "1"}}).status(), "of disk");
  expect_invalid(metrics.AddGauge("heat", "", {{"__name__", "1"}}).status(), "__name__");
  expect_invalid(metrics.AddGauge("heat", "", {{"disk", "1"}, {"disk", "2"}}).status(), "twice");
  expect_invalid(metrics.AddGauge("heat", "", {{"disk", "\xff"}}).status(), "UTF-8");
  expect_invalid(metrics.AddGauge("heat", "\xff").status(), "UTF-8");
  expect_invalid(metrics.AddGauge("heat_total", "").status(), "_total");
  expect_invalid(metrics.AddCounter("scrubs", "").status(), "_total");
  expect_invalid(metrics.AddHistogram("seeks", "", {}).status(), "0 bounds");
  expect_invalid(metrics.AddHistogram("seeks", "", {1, 1}).status(), "2 bounds");
  ASSERT_TRUE(metrics.AddGauge("heat", "", {{"disk", "1"}}).ok());
  expect_invalid(metrics.AddGauge("heat", "", {{"host", "1"}}).status(), "label names");
  expect_invalid(metrics.AddGauge("heat", "Of the disks.", {{"disk", "2"}}).status(), "help");
}

TEST_F(MetricsTest, SeriesAreBounded) {
  const auto runtime = *Runtime::Start();
  Metrics& metrics = runtime->metrics();
  for (size_t i = 0; i < Metrics::kMaxSeries; ++i) {
    ASSERT_TRUE(metrics.AddGauge("heat", "", {{"disk", fmt::format("{}", i)}}).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(metrics.AddGauge("cold", "").status()));
}

}  // namespace metrics_test
}  // namespace verbena
