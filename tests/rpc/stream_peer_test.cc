// A stream whose two sides do not agree ends alone, whatever they disagree about: how large a
// message may be, or whether the stream is still wanted.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/stream_service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSmallLimit = 100000;
constexpr size_t kBeyond = 200000;

class StreamPeerTest : public StreamTest {
 protected:
  static RuntimeOptions Small() {
    RuntimeOptions small;
    small.limits.max_message_bytes = kSmallLimit;
    return small;
  }
  static void ExpectBeyondTheLimit(const absl::Status& status) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("100000"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("LinkLimits::max_message_bytes"));
  }

  // Runs `streams` while a unary call over the same link waits, which must not notice.
  absl::Status RunBesideACall(Task<absl::Status> streams) {
    auto run = [&]() -> Task<absl::Status> {
      CancelScope scope;
      TaskScope tasks(co_await CurrentContext());
      std::optional<absl::Status> held;
      auto hold = [&]() -> Task<absl::Status> {
        co_return (co_await stub_->Hold(ItemOf(1))).status();
      };
      auto beside = [&]() -> Task<void> { held = co_await hold().In(&scope); };
      tasks.Spawn(beside());
      while (service_.running == 0) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
      const absl::Status ended = co_await std::move(streams);
      EXPECT_FALSE(held.has_value());
      scope.Request();
      co_await tasks.Join();
      EXPECT_TRUE(absl::IsCancelled(*held)) << *held;
      co_return ended;
    };
    return Run(run());
  }
};

TEST_F(StreamPeerTest, ALimitOfTheReaderFailsTheStreamAndNotItsLink) {
  Start({}, Small());
  auto streams = [&]() -> Task<absl::Status> {
    const absl::StatusOr<testing::Summary> sum = co_await SumOf(3, kBeyond);
    ExpectBeyondTheLimit(sum.status());
    // A request that travels as a message.
    testing::CountRequest request;
    request.set_filler(std::string(kBeyond, 'f'));
    ClientReader<Item> reader = stub_->Count(request);
    EXPECT_FALSE((co_await reader.Read()).has_value());
    const absl::Status counted = co_await reader.Finish();
    ExpectBeyondTheLimit(counted);
    EXPECT_EQ(OutcomeOf(counted), Outcome::kNotExecuted);
    co_return (co_await SumOf(3, kSmallLimit / 2)).status();
  };
  EXPECT_EQ(RunBesideACall(streams()), absl::OkStatus());
}

TEST_F(StreamPeerTest, ALimitOfAReadingClientFailsTheStreamAndNotItsLink) {
  Start({}, {}, Small());
  service_.reply_filler = kBeyond;
  auto streams = [&]() -> Task<absl::Status> {
    ExpectBeyondTheLimit(co_await CountOf(3, kBeyond));
    const absl::StatusOr<testing::Summary> sum = co_await SumOf(3, 100);
    ExpectBeyondTheLimit(sum.status());
    co_return co_await CountOf(3, kSmallLimit / 2);
  };
  EXPECT_EQ(RunBesideACall(streams()), absl::OkStatus());
}

TEST_F(StreamPeerTest, AReadOrWriteThatNoCancellationReachesEndsWithItsCaller) {
  service_.shields = true;
  Start();
  auto streams = [&]() -> Task<absl::Status> {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(1)));
    testing::CountRequest request;
    request.set_count(1000000);
    request.set_bytes(1000);
    ClientReader<Item> reader = stub_->Count(request);
    EXPECT_TRUE((co_await reader.Read()).has_value());
    while (service_.read_ == 0) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    EXPECT_EQ(service_.running, 3);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(RunBesideACall(streams()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the handlers end");
  EXPECT_EQ(service_.last_failure, static_cast<int>(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace verbena
