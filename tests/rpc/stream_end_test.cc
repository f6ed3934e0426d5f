// Streams end with the handler's status, and end for both sides however one side gives up, loses
// the link or is destroyed.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "tests/rpc/abandonable.h"
#include "tests/rpc/open_link.h"
#include "tests/rpc/stream_service.h"
#include "tests/support/watched.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

constinit const MethodDescriptor kCount("verbena.testing.Streaming/Count", Idempotency::kUnknown,
                                        Payloads::kNone, Streams::kServer);

TEST_F(StreamTest, TheHandlersStatusComesBehindItsMessages) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(100);
    request.set_code(static_cast<int>(absl::StatusCode::kDataLoss));
    ClientReader<Item> reader = stub_->Count(request);
    int count = 0;
    while ((co_await reader.Read()).has_value()) ++count;
    EXPECT_EQ(count, 100);
    co_return co_await reader.Finish();
  };
  const absl::Status status = Run(run());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "as was asked");
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

// The server judges the request, as for unary calls.
TEST_F(StreamTest, ARequestThatLacksARequiredFieldIsSent) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    const google::protobuf::UninterpretedOption::NamePart lacking;
    ClientReader<Item> reader(internal::CoreOf(*channel_), kCount, lacking, {});
    EXPECT_FALSE((co_await reader.Read()).has_value());
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// So that a loop ends which asks only whether a Read has failed.
TEST_F(StreamTest, AReadBehindTheEndFails) {
  Start();
  auto run = [&](bool waits) -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(1);
    ClientReader<Item> reader = stub_->Count(request);
    Item item;
    EXPECT_TRUE((co_await reader.TryRead(item)).value());
    // The end comes ahead of this call's answer.
    if (!waits) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    EXPECT_FALSE((co_await reader.TryRead(item)).value());
    for (int again = 0; again < 2; ++again) {
      const absl::Status behind = (co_await reader.TryRead(item)).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(behind)) << behind;
    }
    co_return co_await reader.Finish();
  };
  for (const bool waits : {true, false}) EXPECT_EQ(Run(run(waits)), absl::OkStatus());
}

TEST_F(StreamTest, AReadThatWaitedForTheEndToldOfItToo) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    EXPECT_EQ(co_await stream.Write(ItemOf(1, 10)), absl::OkStatus());
    EXPECT_TRUE((co_await stream.Read()).has_value());
    Item item;
    // The Read waits before the server hears that there is no more to echo.
    const auto [read, done] = co_await WhenAll(stream.TryRead(item), stream.WritesDone());
    EXPECT_EQ(done, absl::OkStatus());
    EXPECT_FALSE(read.value());
    const absl::Status behind = (co_await stream.TryRead(item)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(behind)) << behind;
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamTest, FinishDropsWhatWasNotRead) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(5000);
    request.set_bytes(1000);
    ClientReader<Item> reader = stub_->Count(request);
    EXPECT_TRUE((co_await reader.Read()).has_value());
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(service_.written_, 5000u);
}

TEST_F(StreamTest, AServerMayEndAClientsStreamBeforeItsEnd) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    EXPECT_EQ(co_await writer.Write(ItemOf(1, 10)), absl::OkStatus());
    absl::Status written = co_await writer.Write(ItemOf(uint64_t{1} << 40));
    while (written.ok()) written = co_await writer.Write(ItemOf(2, 1000));
    EXPECT_TRUE(absl::IsFailedPrecondition(written)) << written;
    absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
    VERBENA_CO_RETURN_IF_ERROR(sum.status());
    EXPECT_EQ(sum->count(), 1u);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(Run(CountOf(2000, 1000)), absl::OkStatus());
}

TEST_F(StreamTest, TheDeadlineEndsBothSides) {
  Start();
  ASSERT_EQ(Run(channel_->Connect()), absl::OkStatus());
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream =
        stub_->Ignore({.deadline = std::chrono::milliseconds(20)});
    EXPECT_FALSE((co_await stream.Read()).has_value());
    EXPECT_TRUE(absl::IsDeadlineExceeded(co_await stream.Write(ItemOf(1))));
    co_return co_await stream.Finish();
  };
  const absl::Status status = Run(run());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  // Whoever finds it first, the client or the server, says so.
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::AnyOf(
          ::testing::HasSubstr("deadline of verbena.testing.Streaming/Ignore passed before 127"),
          ::testing::HasSubstr("deadline exceeded")));
  Eventually([this] { return service_.running == 0; }, "the handler ends");
}

TEST_F(StreamTest, AbandoningAnyAwaitIsSafe) {
  Start();
  // Each stream is destroyed with its Tasks at another moment.
  auto chat = [&](uint64_t i) -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    auto write = [&]() -> Task<absl::Status> {
      for (;;) {
        VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i, i % 3 == 0 ? 500000 : 1000)));
      }
    };
    auto read = [&]() -> Task<absl::Status> {
      while ((co_await stream.Read()).has_value()) {
      }
      co_return absl::OkStatus();
    };
    (void)co_await WhenAll(write(), read());
    co_return absl::UnknownError("not reached");
  };
  auto finish = [&](uint64_t i) -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = i % 2 == 0 ? stub_->Echo() : stub_->Ignore();
    (void)co_await stream.Write(ItemOf(i));
    co_return co_await stream.Finish();
  };
  auto run = [&]() -> Task<absl::Status> {
    Scheduler& scheduler = client_runtime_->executor(0);
    for (uint64_t i = 0; i < 200; ++i) {
      const Abandonable one(scheduler, chat(i));
      const Abandonable two(scheduler, finish(i));
      for (uint64_t n = 0; n < i % 20; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      EXPECT_FALSE(one.ended());
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "all handlers end");
  EXPECT_EQ(Run(CountOf(2000, 1000)), absl::OkStatus());
}

// Whoever waits for a stream's end may be another Task than its owner.
TEST_F(StreamTest, AFinishMayOutlastItsStream) {
  Start();
  auto finish = [](ClientReaderWriter<Item, Item>& stream,
                   std::optional<absl::Status>& ended) -> Task<void> {
    ended = co_await stream.Finish();
  };
  auto run = [&]() -> Task<absl::Status> {
    std::optional<absl::Status> ended;
    TaskScope tasks(co_await CurrentContext());
    {
      ClientReaderWriter<Item, Item> stream = stub_->Ignore();
      tasks.Spawn(finish(stream, ended));
      while (service_.running == 0) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
      EXPECT_FALSE(ended.has_value());
    }
    co_await tasks.Join();
    EXPECT_EQ(ended->code(), absl::StatusCode::kCancelled) << *ended;
    EXPECT_EQ(OutcomeOf(*ended), Outcome::kMaybeExecuted);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the handler is cancelled");
}

TEST_F(StreamTest, AReadThatNoCancellationReachesEndsWithTheLink) {
  service_.shields = true;
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(1)));
    while (service_.read_ == 0) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    // While the stream lives: its destructor would send a CANCEL.
    VERBENA_CO_RETURN_IF_ERROR(internal::CloseLinkOf(*client_runtime_));
    EXPECT_TRUE(absl::IsUnavailable((co_await writer.Finish()).status()));
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the handler ends");
  EXPECT_EQ(service_.last_failure, static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST_F(StreamTest, AMessageThatDoesNotParseEndsTheStream) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(3);
    request.set_bytes(5);
    // Read as another type than is sent.
    ClientReader<testing::NestedItem> reader(internal::CoreOf(*channel_), kCount, request, {});
    testing::NestedItem wrong;
    while (co_await reader.Read(wrong)) {
    }
    co_return co_await reader.Finish();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(Run(run())));
}

TEST_F(StreamTest, AServerThatIsDestroyedEndsItsStreams) {
  Start();
  std::atomic<bool> open = false;
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    EXPECT_EQ(co_await stream.Write(ItemOf(1)), absl::OkStatus());
    EXPECT_TRUE((co_await stream.Read()).has_value());
    open = true;
    EXPECT_FALSE((co_await stream.Read()).has_value());
    EXPECT_FALSE((co_await stream.Write(ItemOf(2))).ok());
    co_return co_await stream.Finish();
  };
  JoinHandle<absl::Status> ended = client_runtime_->Spawn(run());
  Eventually([&] { return open.load(); }, "the stream is open");
  server_.reset();
  EXPECT_FALSE(ended.Join().ok());
}

TEST_F(StreamTest, AServerThatShutsDownLetsStreamsEndAndThenCancelsThem) {
  constexpr std::chrono::milliseconds kGrace(300);
  // The server's: its grace is over when the first stream has ended.
  testing::FakeClock standing;
  Start({}, {.clock = &standing});
  std::atomic<bool> open = false;
  Watched<bool> go_on;
  std::atomic<bool> over = false;
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> ends = stub_->Echo();
    ClientReaderWriter<Item, Item> stays = stub_->Ignore();
    EXPECT_EQ(co_await ends.Write(ItemOf(1)), absl::OkStatus());
    EXPECT_EQ(co_await stays.Write(ItemOf(1)), absl::OkStatus());
    EXPECT_TRUE((co_await ends.Read()).has_value());
    open = true;
    (void)co_await go_on.Until(true);
    // The server says GOAWAY, and this stream still works.
    EXPECT_EQ(co_await ends.Write(ItemOf(2)), absl::OkStatus());
    EXPECT_TRUE((co_await ends.Read()).has_value());
    EXPECT_EQ(co_await ends.Finish(), absl::OkStatus());
    over = true;
    EXPECT_FALSE((co_await stays.Read()).has_value());
    co_return co_await stays.Finish();
  };
  JoinHandle<absl::Status> ended = client_runtime_->Spawn(run());
  Eventually([&] { return open.load(); }, "the streams are open");
  std::thread shutdown([&] { (void)server_->Shutdown(kGrace); });
  Eventually([this] { return absl::IsUnavailable(Run(SayOnce())); }, "the server refuses calls");
  go_on = true;
  Eventually([&] { return over.load(); }, "the first stream ends");
  EXPECT_EQ(service_.running, 1);
  standing.Advance(*server_runtime_, kGrace);
  const absl::Status status = ended.Join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  standing.Run();
  shutdown.join();
  EXPECT_EQ(service_.running, 0);
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  server_.reset();
  server_runtime_.reset();
}

TEST_F(StreamTest, AStreamThatFindsNoServerFails) {
  client_runtime_ = StartRuntime();
  channel_ = std::make_unique<Channel>(*client_runtime_, "127.0.0.1:1");
  stub_ = std::make_unique<testing::Streaming::Stub>(*channel_);
  const absl::Status status = Run(CountOf(1, 1));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

}  // namespace
}  // namespace verbena
