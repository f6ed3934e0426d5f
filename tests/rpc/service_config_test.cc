// A service config in gRPC's JSON means what it means to gRPC. One that is wrong is refused, with
// the place and the key or the value; one in code names the field and its range.

#include "verbena/rpc/naming/service_config.h"
#include "verbena/rpc/policy.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace verbena {
namespace service_config_test {

using namespace std::chrono_literals;
using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(const std::string& json) {
  const absl::StatusOr<ServiceConfig> config = ParseServiceConfig(json);
  EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << json;
  return std::string(config.status().message());
}

// With `policy` for the method a.B/C.
std::string Method(const std::string& policy) {
  return R"({"methodConfig": [{"name": [{"service": "a.B", "method": "C"}], )" + policy + "}]}";
}

std::string Retry(const std::string& attempts, const std::string& backoff,
                  const std::string& codes) {
  return Method(R"("retryPolicy": {"maxAttempts": )" + attempts + R"(, "initialBackoff": )" +
                backoff + R"(, "maxBackoff": "1s", "backoffMultiplier": 1.5,
                "retryableStatusCodes": )" +
                codes + "}");
}

TEST(ServiceConfigTest, EachFieldHasItsPlaceInTheConfig) {
  const absl::StatusOr<ServiceConfig> config = ParseServiceConfig(R"({
    "methodConfig": [
      {
        "name": [{"service": "a.B", "method": "Get"}, {"service": "a.C"}, {}],
        "timeout": "1.5s",
        "waitForReady": true,
        "retryPolicy": {
          "maxAttempts": 4,
          "initialBackoff": "0.01s",
          "maxBackoff": "2s",
          "backoffMultiplier": 1.5,
          "retryableStatusCodes": ["UNAVAILABLE", 10],
          "perAttemptRecvTimeout": "0.25s"
        }
      },
      {
        "name": [{"service": "a.B"}],
        "hedgingPolicy": {
          "maxAttempts": 3,
          "hedgingDelay": "0.000000007s",
          "nonFatalStatusCodes": ["RESOURCE_EXHAUSTED"]
        }
      }
    ],
    "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.125}
  })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(internal::CheckServiceConfig(*config), absl::OkStatus());
  ASSERT_EQ(config->methods.size(), 4u);
  const char* names[] = {"a.B/Get", "a.C", ""};
  for (int i = 0; i < 3; ++i) {
    const MethodConfig& method = config->methods[i];
    EXPECT_EQ(method.name, names[i]);
    EXPECT_EQ(method.timeout, 1500ms);
    EXPECT_TRUE(method.wait_for_ready);
    ASSERT_TRUE(method.retry.has_value());
    EXPECT_EQ(method.retry->max_attempts, 4);
    EXPECT_EQ(method.retry->initial_backoff, 10ms);
    EXPECT_EQ(method.retry->max_backoff, 2s);
    EXPECT_EQ(method.retry->backoff_multiplier, 1.5);
    EXPECT_EQ(method.retry->retryable_codes,
              (std::vector<StatusCode>{StatusCode::kUnavailable, StatusCode::kAborted}));
    EXPECT_EQ(method.retry->attempt_timeout, 250ms);
  }
  const MethodConfig& hedged = config->methods[3];
  EXPECT_FALSE(hedged.retry.has_value());
  ASSERT_TRUE(hedged.hedging.has_value());
  EXPECT_EQ(hedged.hedging->max_attempts, 3);
  EXPECT_EQ(hedged.hedging->delay, 7ns);
  EXPECT_EQ(hedged.hedging->non_fatal_codes,
            (std::vector<StatusCode>{StatusCode::kResourceExhausted}));
  EXPECT_EQ(config->budget.max_tokens, 10);
  EXPECT_EQ(config->budget.token_ratio, 0.125);
}

TEST(ServiceConfigTest, DefaultsAreThoseOfGrpc) {
  const absl::StatusOr<ServiceConfig> config =
      ParseServiceConfig(Method(R"("hedgingPolicy": {"maxAttempts": 100})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->methods[0].hedging->max_attempts, RetryPolicy::kMaxAttempts);
  EXPECT_EQ(config->methods[0].hedging->delay, 0ns);
  EXPECT_TRUE(config->methods[0].hedging->non_fatal_codes.empty());
  EXPECT_TRUE(ParseServiceConfig("{}").ok());
}

TEST(ServiceConfigTest, NamesAKeyThatIsNotKnownWithItsPlace) {
  EXPECT_THAT(ErrorOf("{\n  \"methodConfigs\": []}"),
              StartsWith("2:3: the key \"methodConfigs\" is not known here; these are: "
                         "methodConfig, retryThrottling"));
  EXPECT_THAT(ErrorOf("{\"methodConfig\": [\n{\"name\": [{\"servise\": \"a\"}]}]}"),
              StartsWith("2:12: the key \"servise\" is not known"));
  EXPECT_THAT(ErrorOf(Method("\n\"loadBalancing\": 1")),
              StartsWith("2:1: the key \"loadBalancing\" is not known"));
}

TEST(ServiceConfigTest, NamesThePlaceOfAValueThatIsWrong) {
  EXPECT_THAT(ErrorOf(Method("\n\"timeout\": \"1 s\"")), StartsWith("2:12: \"1 s\" is no time"));
  EXPECT_THAT(ErrorOf(Method("\n\"timeout\": 5")), StartsWith("2:12: a time such as"));
  EXPECT_THAT(ErrorOf(Method("\n\"timeout\": \"0s\"")), StartsWith("2:12: \"0s\" is out of"));
  EXPECT_THAT(ErrorOf(Method("\n\"waitForReady\": 1")), StartsWith("2:17: true or false"));
  EXPECT_THAT(ErrorOf("[]"), StartsWith("1:1: an object in braces is wanted"));
  EXPECT_THAT(ErrorOf("{\"methodConfig\": {}}"), StartsWith("1:18: a list in brackets"));
  EXPECT_THAT(ErrorOf(Retry("\n1", "\"1s\"", "[14]")), StartsWith("2:1: \"1\" is out of range"));
  EXPECT_THAT(ErrorOf(Retry("\n2.5", "\"1s\"", "[14]")), StartsWith("2:1: \"2.5\" is no whole"));
  EXPECT_THAT(ErrorOf(Retry("2", "\"1s\"", "[\n\"GONE\"]")),
              StartsWith("3:1: \"GONE\" is no code of a failure"));
  EXPECT_THAT(ErrorOf(Retry("2", "\"1s\"", "[\"OK\"]")), HasSubstr("\"OK\" is no code"));
  EXPECT_THAT(ErrorOf(Retry("2", "\"1s\"", "[]")), HasSubstr("retryableStatusCodes is empty"));
}

TEST(ServiceConfigTest, NamesAKeyThatIsMissingOrThereTwice) {
  EXPECT_THAT(ErrorOf("{\"methodConfig\": [{}]}"), StartsWith("1:19: the key \"name\" is missing"));
  EXPECT_THAT(ErrorOf(Method("\n\"retryPolicy\": {\"maxAttempts\": 2}")),
              StartsWith("2:16: the key \"initialBackoff\" is missing"));
  EXPECT_THAT(ErrorOf("{\"methodConfig\": [],\n \"methodConfig\": []}"),
              StartsWith("2:2: the key \"methodConfig\" is there twice"));
  EXPECT_THAT(ErrorOf(R"({"methodConfig": [{"name": [{"service": "a"}, {"service": "a"}]}]})"),
              StartsWith("1:47: the name \"a\" is there twice"));
  EXPECT_THAT(ErrorOf(R"({"methodConfig": [{"name": [{"method": "M"}]}]})"),
              HasSubstr("a method needs its service"));
  EXPECT_THAT(ErrorOf(Method(R"("retryPolicy": {"maxAttempts": 2, "initialBackoff": "1s",
      "maxBackoff": "1s", "backoffMultiplier": 1, "retryableStatusCodes": [14]},
      "hedgingPolicy": {"maxAttempts": 2})")),
              HasSubstr("retryPolicy and hedgingPolicy are both here"));
}

TEST(ServiceConfigTest, AnObjectWithTooManyKeysIsRefusedBeforeTheyAreCompared) {
  std::string keys;
  for (int i = 0; i <= 1024; ++i) keys += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  EXPECT_THAT(ErrorOf("{" + keys + "}"), HasSubstr("an object has more than 1024 keys"));
}

TEST(ServiceConfigTest, TooManyNamesAreRefused) {
  std::string names;
  for (int i = 0; i <= 1024; ++i) {
    names += (i == 0 ? "{\"service\": \"" : ",{\"service\": \"") + std::to_string(i) + "\"}";
  }
  EXPECT_THAT(ErrorOf("{\"methodConfig\": [{\"name\": [" + names + "]}]}"),
              HasSubstr("more than 1024 names"));
}

TEST(ServiceConfigTest, ACodeCountsOnce) {
  const absl::StatusOr<ServiceConfig> config =
      ParseServiceConfig(Retry("2", "\"1s\"", "[14, \"UNAVAILABLE\", 8, 14]"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->methods[0].retry->retryable_codes.size(), 2u);
}

TEST(ServiceConfigTest, TextThatIsNoJsonIsRefusedAtItsPlace) {
  EXPECT_THAT(ErrorOf(""), StartsWith("1:1: this is no JSON"));
  EXPECT_THAT(ErrorOf("{\"methodConfig\": [\n}"), StartsWith("2:1: this is no JSON"));
  EXPECT_THAT(ErrorOf("{} {}"), StartsWith("1:4: this is no JSON"));
  EXPECT_THAT(ErrorOf(std::string(100, '[')), HasSubstr("this is no JSON"));
  EXPECT_THAT(ErrorOf(std::string(2 << 20, ' ')), HasSubstr("2097152 bytes"));
}

TEST(ServiceConfigTest, ErrorsShowLittleOfALongOrOddText) {
  const std::string error = ErrorOf("{\"" + std::string(10'000, 'x') + "\": 1}");
  EXPECT_LT(error.size(), 200u);
  EXPECT_THAT(ErrorOf("{\"a\\nb\": 1}"), HasSubstr("\"a?b\""));
}

TEST(ServiceConfigTest, FieldsInCodeHaveRanges) {
  const auto error = [](MethodConfig method) {
    return std::string(internal::CheckServiceConfig({.methods = {std::move(method)}}).message());
  };
  EXPECT_EQ(error({.retry = RetryPolicy{.max_attempts = 2}}), "");
  EXPECT_EQ(error({.retry = RetryPolicy{.max_attempts = 5}}), "");
  EXPECT_THAT(error({.name = "a.B", .retry = RetryPolicy{.max_attempts = 1}}),
              HasSubstr("\"a.B\": max_attempts is 1, its range 2 to 5"));
  EXPECT_THAT(error({.retry = RetryPolicy{.max_attempts = 6}}), HasSubstr("max_attempts is 6"));
  EXPECT_THAT(error({.retry = RetryPolicy{.initial_backoff = 2s, .max_backoff = 1s}}),
              HasSubstr("initial_backoff"));
  EXPECT_THAT(error({.retry = RetryPolicy{.backoff_multiplier = 0.5}}),
              HasSubstr("backoff_multiplier is 0.5"));
  EXPECT_THAT(error({.retry = RetryPolicy{.retryable_codes = {StatusCode::kOk}}}),
              HasSubstr("no code of a failure"));
  EXPECT_THAT(error({.hedging = HedgingPolicy{.delay = -1ns}}), HasSubstr("delay is -1 ns"));
  EXPECT_THAT(error({.retry = RetryPolicy{}, .hedging = HedgingPolicy{}}),
              HasSubstr("retry and hedging are both set"));
  EXPECT_THAT(error({.timeout = -1s}), HasSubstr("timeout is -1000000000 ns"));
  EXPECT_THAT(std::string(internal::CheckServiceConfig({.methods = {{}, {}}}).message()),
              HasSubstr("there twice"));
  EXPECT_THAT(std::string(internal::CheckServiceConfig({.budget = {.max_tokens = 1001}}).message()),
              HasSubstr("max_tokens is 1001, its range 0 to 1000"));
  EXPECT_THAT(std::string(internal::CheckServiceConfig({.budget = {.token_ratio = 0}}).message()),
              HasSubstr("token_ratio is 0"));
}

}  // namespace service_config_test
}  // namespace verbena
