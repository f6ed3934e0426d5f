// A message that a failed Write did not send never passes for sent: Finish() fails with the Write's
// status, and the server's handler is cancelled, unless the client says by WritesDone() that its
// messages are whole.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/rpc/abandonable.h"
#include "tests/rpc/stream_service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

constexpr size_t kLargest = 100000;
// More than the window of a stream, so that its Write waits.
constexpr size_t kBeyondTheWindow = 1000000;

class StreamLostWriteTest : public StreamTest {
 protected:
  using Writer = ClientWriter<Item, testing::Summary>;

  void StartSmall() {
    RuntimeOptions small;
    small.limits.max_message_bytes = kLargest;
    Start({}, small, small);
  }
  template <typename Stream>
  static Task<absl::Status> Write(Stream& stream, Item item) {
    co_return co_await stream.Write(item);
  }
  template <typename Stream>
  static Task<void> WriteIn(CancelScope& scope, Stream& stream, Item item, absl::Status& written) {
    written = co_await Write(stream, std::move(item)).In(&scope);
  }
  void ExpectHandlerIsCancelled() {
    Eventually([this] { return service_.running == 0; }, "the handler ends");
    EXPECT_EQ(service_.last_failure, static_cast<int>(absl::StatusCode::kCancelled));
  }
};

TEST_F(StreamLostWriteTest, FinishGivesUpAStreamThatLacksAMessage) {
  StartSmall();
  auto run = [&]() -> Task<absl::Status> {
    Writer writer = stub_->Sum();
    EXPECT_EQ(co_await writer.Write(ItemOf(1)), absl::OkStatus());
    const absl::Status refused = co_await writer.Write(ItemOf(2, kLargest + 1));
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    // A later one that succeeds does not make up for it.
    EXPECT_EQ(co_await writer.Write(ItemOf(3)), absl::OkStatus());
    while (service_.read_ < 2) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    const absl::Status finished = (co_await writer.Finish()).status();
    EXPECT_EQ(finished.message(), refused.message());
    co_return finished;
  };
  const absl::Status status = Run(run());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  ExpectHandlerIsCancelled();
}

TEST_F(StreamLostWriteTest, FinishGivesUpAStreamOfBothSidesToo) {
  StartSmall();
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    EXPECT_EQ(co_await stream.Write(ItemOf(1)), absl::OkStatus());
    EXPECT_FALSE((co_await stream.Write(ItemOf(2, kLargest + 1))).ok());
    EXPECT_TRUE((co_await stream.Read()).has_value()) << "the stream goes on";
    co_return co_await stream.Finish();
  };
  const absl::Status status = Run(run());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  Eventually([this] { return service_.running == 0; }, "the handler ends");
}

TEST_F(StreamLostWriteTest, WritesDoneSaysThatTheMessagesAreWholeWithoutIt) {
  StartSmall();
  auto run = [&]() -> Task<absl::Status> {
    Writer writer = stub_->Sum();
    EXPECT_FALSE((co_await writer.Write(ItemOf(1, kLargest + 1))).ok());
    EXPECT_EQ(co_await writer.Write(ItemOf(2)), absl::OkStatus());
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.WritesDone());
    VERBENA_CO_ASSIGN_OR_RETURN(const testing::Summary sum, co_await writer.Finish());
    EXPECT_EQ(sum.count(), 1u);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// The server's answer is to messages of which one is missing.
TEST_F(StreamLostWriteTest, AHandlerThatEndsBeforeItsClientDoesNotHideTheLoss) {
  StartSmall();
  auto run = [&]() -> Task<absl::Status> {
    Writer writer = stub_->Sum();
    EXPECT_FALSE((co_await writer.Write(ItemOf(1, kLargest + 1))).ok());
    absl::Status written = co_await writer.Write(ItemOf(uint64_t{1} << 40));
    while (written.ok()) written = co_await writer.Write(ItemOf(2, 1000));
    EXPECT_TRUE(absl::IsFailedPrecondition(written)) << written;
    co_return (co_await writer.Finish()).status();
  };
  const absl::Status status = Run(run());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

TEST_F(StreamLostWriteTest, ACancelledWriteCounts) {
  Start();
  auto run = [&](bool waits) -> Task<absl::Status> {
    service_.reads_later = true;
    Writer writer = stub_->Sum();
    CancelScope scope;
    TaskScope tasks(co_await CurrentContext());
    absl::Status written;
    EXPECT_EQ(co_await writer.Write(ItemOf(1)), absl::OkStatus());
    if (!waits) scope.Request();
    tasks.Spawn(WriteIn(scope, writer, ItemOf(2, kBeyondTheWindow), written));
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    scope.Request();
    co_await tasks.Join();
    EXPECT_TRUE(absl::IsCancelled(written)) << written;
    service_.reads_later = false;
    EXPECT_EQ(co_await writer.Write(ItemOf(3)), absl::OkStatus());
    co_return (co_await writer.Finish()).status();
  };
  for (const bool waits : {true, false}) {
    const absl::Status status = Run(run(waits));
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  }
}

// While the stream connects, and while it waits for the window.
TEST_F(StreamLostWriteTest, AWriteThatIsDestroyedCounts) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Scheduler& scheduler = client_runtime_->executor(0);
    Writer writer = stub_->Sum();
    {
      const Abandonable write(scheduler, Write(writer, ItemOf(1, kBeyondTheWindow)));
      EXPECT_FALSE(write.ended());
    }
    co_return (co_await writer.Finish()).status();
  };
  const absl::Status connecting = Run(run());
  EXPECT_TRUE(absl::IsCancelled(connecting)) << connecting;
  ASSERT_EQ(Run(channel_->Connect()), absl::OkStatus());
  const absl::Status connected = Run(run());
  EXPECT_TRUE(absl::IsCancelled(connected)) << connected;
  EXPECT_EQ(OutcomeOf(connected), Outcome::kMaybeExecuted);
}

// As WhenAny() leaves it that has a Task which ends at once.
TEST_F(StreamLostWriteTest, AWriteThatNobodyHasStartedCounts) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Writer writer = stub_->Sum();
    EXPECT_EQ(co_await writer.Write(ItemOf(1)), absl::OkStatus());
    const Item lost = ItemOf(2);
    {
      const Task<absl::Status> write = writer.Write(lost).AsTask();
    }
    co_return (co_await writer.Finish()).status();
  };
  const absl::Status status = Run(run());
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(StreamLostWriteTest, AWriteThatNobodyHasStartedIsNotMissedOnceTheMessagesAreWhole) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Writer writer = stub_->Sum();
    EXPECT_EQ(co_await writer.Write(ItemOf(1)), absl::OkStatus());
    const Item left_out = ItemOf(2);
    {
      const Task<absl::Status> write = writer.Write(left_out).AsTask();
      EXPECT_EQ(co_await writer.WritesDone(), absl::OkStatus());
    }
    co_return (co_await writer.Finish()).status();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

}  // namespace
}  // namespace verbena
