// The Status of a stream that failed arrives with its details, however large they are up to a
// bound, and however little of the stream's messages was read. Where there is no memory for it, its
// code and its outcome arrive.

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"

namespace verbena {
namespace {

constexpr size_t kKiB = 1024;

class StreamFailureTest : public StreamTest {
 protected:
  // A stream of each kind that fails.
  static testing::CountRequest FailingRequest(uint32_t count, uint32_t bytes) {
    testing::CountRequest request;
    request.set_count(count);
    request.set_bytes(bytes);
    request.set_code(static_cast<int>(absl::StatusCode::kDataLoss));
    return request;
  }
  Task<absl::Status> FailedCount() {
    ClientReader<Item> reader = stub_->Count(FailingRequest(3, 0));
    Item item;
    int read = 0;
    while (co_await reader.Read(item)) ++read;
    EXPECT_EQ(read, 3);
    co_return co_await reader.Finish();
  }
  Task<absl::Status> FailedSum() {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(1)));
    co_return (co_await writer.Finish()).status();
  }
  Task<absl::Status> FailedEcho() {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(1)));
    EXPECT_TRUE((co_await stream.Read()).has_value());
    co_return co_await stream.Finish();
  }

  void Fail(size_t message_bytes, size_t detail_bytes) {
    service_.fails_with = absl::StatusCode::kDataLoss;
    service_.message_bytes = message_bytes;
    service_.detail_bytes = detail_bytes;
  }
  // With `detail_bytes` 0: no details.
  static void ExpectFailure(const absl::Status& status, size_t message_bytes, size_t detail_bytes) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "as was asked" + std::string(message_bytes, 'm'));
    EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
    const auto detail = status.GetPayload(StreamingService::kDetail);
    EXPECT_EQ(detail.has_value(), detail_bytes > 0);
    if (detail.has_value()) {
      EXPECT_EQ(*detail, std::string(detail_bytes, 'd'));
    }
  }
  // Half of it is for one peer.
  static void SetBudget(Runtime& runtime, size_t bytes) {
    auto set = [&]() -> Task<void> {
      internal::CoreOf(runtime).shard(0).stream_memory().set_budget_bytes(bytes);
      co_return;
    };
    runtime.BlockOn(set());
  }
  static size_t UsedBytes(Runtime& runtime) {
    auto used = [&]() -> Task<size_t> {
      co_return internal::CoreOf(runtime).shard(0).stream_memory().used_bytes();
    };
    return runtime.BlockOn(used());
  }
};

TEST_F(StreamFailureTest, DetailsOfAnySizeArriveFromStreamsOfAllKinds) {
  Start();
  // About the size of a frame, of several, and almost as large as they may be.
  for (const size_t bytes : {size_t{1}, size_t{4480}, size_t{4520}, size_t{4600}, size_t{9000},
                             100 * kKiB, 250 * kKiB}) {
    Fail(0, bytes);
    ExpectFailure(Run(FailedCount()), 0, bytes);
    ExpectFailure(Run(FailedSum()), 0, bytes);
    ExpectFailure(Run(FailedEcho()), 0, bytes);
  }
  Fail(5000, 100 * kKiB);
  ExpectFailure(Run(FailedCount()), 5000, 100 * kKiB);
  Fail(5000, 0);
  ExpectFailure(Run(FailedSum()), 5000, 0);
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u);
  EXPECT_EQ(UsedBytes(*client_runtime_), 0u);
  EXPECT_EQ(UsedBytes(*server_runtime_), 0u);
}

TEST_F(StreamFailureTest, DetailsBeyondTheirBoundAreLeftOut) {
  Start();
  Fail(0, 300 * kKiB);
  ExpectFailure(Run(FailedCount()), 0, 0);
  ExpectFailure(Run(FailedEcho()), 0, 0);
}

// They count in no window: some 250 KB of messages are unread, almost all that it takes.
TEST_F(StreamFailureTest, DetailsArriveThoughMessagesAreUnread) {
  Start();
  Fail(0, 100 * kKiB);
  auto run = [&]() -> Task<absl::Status> {
    CallInfo info;
    ClientReader<Item> reader = stub_->Count(FailingRequest(244, 1000), {.info = &info});
    int read = (co_await reader.Read()).has_value() ? 1 : 0;
    // Until the stream has ended here.
    for (int i = 0; i < 10'000 && info.elapsed == Duration::zero(); ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    }
    EXPECT_GT(info.elapsed, Duration::zero());
    Item item;
    while (co_await reader.Read(item)) ++read;
    EXPECT_EQ(read, 244);
    co_return co_await reader.Finish();
  };
  ExpectFailure(Run(run()), 0, 100 * kKiB);
}

TEST_F(StreamFailureTest, AClientWithoutMemoryHearsTheCodeAndTheOutcome) {
  Start();
  ASSERT_EQ(Run(SayOnce()), absl::OkStatus());
  SetBudget(*client_runtime_, 64 * kKiB);
  Fail(0, 100 * kKiB);
  const absl::Status status = Run(FailedEcho());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  EXPECT_NE(std::string(status.message()).find("was lost"), std::string::npos) << status;
  EXPECT_FALSE(status.GetPayload(StreamingService::kDetail).has_value());
  EXPECT_EQ(UsedBytes(*client_runtime_), 0u);
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u);
}

TEST_F(StreamFailureTest, AServerWithoutMemorySendsWhatFitsAFrame) {
  server_runtime_ = StartRuntime();
  SetBudget(*server_runtime_, 64 * kKiB);
  ServeWith(service_);
  StartClient(server_->address());
  Fail(0, 100 * kKiB);
  ExpectFailure(Run(FailedEcho()), 0, 0);
  EXPECT_EQ(UsedBytes(*server_runtime_), 0u);
}

}  // namespace
}  // namespace verbena
