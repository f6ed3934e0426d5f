// Streams bring their messages over in order and whole, both ways and of any size, and no Read that
// is given up loses one. A reader that stops holds up its own stream alone.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/abandonable.h"
#include "tests/rpc/stream_service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

TEST_F(StreamTest, AServersMessagesArriveInOrderAndThenItsEnd) {
  Start();
  EXPECT_EQ(Run(CountOf(0, 0)), absl::OkStatus());
  EXPECT_EQ(Run(CountOf(1, 10)), absl::OkStatus());
  EXPECT_EQ(Run(CountOf(5000, 1000)), absl::OkStatus());
}

TEST_F(StreamTest, EmptyMessagesAreMessages) {
  Start();
  // Item 0 without data is empty on the wire.
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    for (int i = 0; i < 2000; ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Item()));
      Item item = ItemOf(3, 3);
      if (!co_await stream.Read(item)) co_return absl::DataLossError("no message");
      EXPECT_EQ(item.ByteSizeLong(), 0u);
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.WritesDone());
    EXPECT_FALSE((co_await stream.Read()).has_value());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamTest, AClientsMessagesAddUpAndTheReplyComes) {
  Start();
  for (uint64_t count : {0, 1, 3000}) {
    absl::StatusOr<testing::Summary> sum = Run(SumOf(count, 500));
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(sum->count(), count);
    EXPECT_EQ(sum->bytes(), count * 500);
  }
}

TEST_F(StreamTest, BothSidesWriteAtOnce) {
  Start();
  constexpr uint64_t kItems = 3000;
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    auto write = [&]() -> Task<absl::Status> {
      for (uint64_t i = 0; i < kItems; ++i) {
        VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i, i % 2000)));
      }
      co_return co_await stream.WritesDone();
    };
    auto read = [&]() -> Task<absl::Status> {
      uint64_t next = 0;
      while (std::optional<Item> item = co_await stream.Read()) {
        EXPECT_EQ(item->number(), next);
        EXPECT_EQ(item->data().size(), next % 2000);
        ++next;
      }
      EXPECT_EQ(next, kItems);
      co_return absl::OkStatus();
    };
    auto [written, readen] = co_await WhenAll(write(), read());
    EXPECT_EQ(written, absl::OkStatus());
    EXPECT_EQ(readen, absl::OkStatus());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamTest, MessagesLargerThanAFrameAndThanTheWindowArriveWhole) {
  RuntimeOptions large;
  large.limits.max_message_bytes = size_t{64} << 20;
  Start({}, large, large);
  // Below and above a frame, a part, the window of a stream, and that of the link.
  for (uint32_t bytes : {4000u, 4050u, 4100u, 33000u, 262144u, 1000000u, 17u << 20}) {
    const uint32_t count = bytes > (1u << 20) ? 1 : 3;
    EXPECT_EQ(Run(CountOf(count, bytes)), absl::OkStatus()) << bytes;
    absl::StatusOr<testing::Summary> sum = Run(SumOf(count, bytes));
    ASSERT_TRUE(sum.ok()) << bytes << ": " << sum.status();
    EXPECT_EQ(sum->bytes(), uint64_t{count} * bytes);
  }
}

TEST_F(StreamTest, AMessageLargerThanTheLargestIsRefusedAndTheStreamGoesOn) {
  RuntimeOptions small;
  small.limits.max_message_bytes = 100000;
  Start({}, small, small);
  auto run = [&]() -> Task<absl::Status> {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    EXPECT_TRUE(absl::IsResourceExhausted(co_await writer.Write(ItemOf(1, 100001))));
    EXPECT_EQ(co_await writer.Write(ItemOf(2, 99000)), absl::OkStatus());
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.WritesDone());
    absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
    VERBENA_CO_RETURN_IF_ERROR(sum.status());
    EXPECT_EQ(sum->count(), 1u);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamTest, AMessageHasFourMiBAtMostByDefault) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    const absl::Status refused = co_await writer.Write(ItemOf(1, size_t{4} << 20));
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(refused.message().find("4194304 (LinkLimits::max_message_bytes)"), std::string::npos)
        << refused;
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.WritesDone());
    co_return (co_await writer.Finish()).status();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  auto count = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_filler(std::string(size_t{4} << 20, 'f'));
    ClientReader<Item> reader = stub_->Count(request);
    co_return co_await reader.Finish();
  };
  const absl::Status refused = Run(count());
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("the client's LinkLimits::max_message_bytes"), std::string::npos)
      << "the server refuses it, too: " << refused;
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
}

TEST_F(StreamTest, ARequestAndAReplyLargerThanAFrameArriveWhole) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(10);
    request.set_filler(std::string(1000000, 'x'));
    ClientReader<Item> reader = stub_->Count(request);
    co_return co_await ReadAll(reader, 10, 0);
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(service_.filler_bytes, 1000000u);
  service_.reply_filler = 2000000;
  absl::StatusOr<testing::Summary> sum = Run(SumOf(5, 1000));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(sum->filler().size(), 2000000u);
  EXPECT_EQ(sum->count(), 5u);
}

TEST_F(StreamTest, ACallInfoHasTheLengthOfTheReplyHoweverItTravels) {
  Start();
  for (const size_t filler : {0u, 2000000u}) {
    service_.reply_filler = filler;
    CallInfo info;
    auto run = [&]() -> Task<absl::Status> {
      ClientWriter<Item, testing::Summary> writer = stub_->Sum({.info = &info});
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(1)));
      VERBENA_CO_ASSIGN_OR_RETURN(const testing::Summary reply, co_await writer.Finish());
      EXPECT_EQ(info.reply_bytes, reply.ByteSizeLong());
      co_return absl::OkStatus();
    };
    EXPECT_EQ(Run(run()), absl::OkStatus());
  }
}

TEST_F(StreamTest, MessagesForAStreamThatHasEndedLeaveTheWindowOpen) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    // Each stream's messages arrive after its end, in all three times as many as the link's window
    // takes.
    for (int i = 0; i < 200; ++i) {
      ClientWriter<Item, testing::Summary> writer =
          stub_->Sum({.deadline = std::chrono::seconds(20)});
      absl::Status written = co_await writer.Write(ItemOf(uint64_t{1} << 40));
      for (int n = 0; n < 260 && written.ok(); ++n) {
        written = co_await writer.Write(ItemOf(1, 950));
      }
      VERBENA_CO_RETURN_IF_ERROR((co_await writer.Finish()).status());
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamTest, AWriterWaitsForTheWindowOfItsReader) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(1000000);
    request.set_bytes(1000);
    ClientReader<Item> reader = stub_->Count(request);
    EXPECT_TRUE((co_await reader.Read()).has_value());
    // Calls go on, and while they do the server writes no more than fits the window.
    for (int i = 0; i < 2000; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    EXPECT_GE(service_.written_, 200u);
    EXPECT_LE(service_.written_, 262144u / 1000 + 2);
    for (int i = 0; i < 10000; ++i) {
      if (!(co_await reader.Read()).has_value()) co_return absl::DataLossError("no message");
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the abandoned stream's handler ends");
  EXPECT_EQ(service_.last_failure, static_cast<int>(absl::StatusCode::kCancelled));
}

TEST_F(StreamTest, AClientWaitsForTheWindowOfAHandlerThatReadsNothing) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Ignore();
    int written = 0;
    auto write = [&]() -> Task<absl::Status> {
      for (;; ++written) VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(1, 1000)));
    };
    auto calls = [&]() -> Task<absl::Status> {
      for (int i = 0; i < 2000; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      co_return absl::OkStatus();
    };
    auto first = co_await WhenAny(write(), calls());
    EXPECT_EQ(first.index(), 1u);
    EXPECT_GE(written, 200);
    EXPECT_LE(written, 262144 / 1000 + 1);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the abandoned stream's handler ends");
}

Task<absl::Status> ReadInto(ClientReaderWriter<testing::StreamItem, testing::StreamItem>& stream,
                            testing::StreamItem& item) {
  co_return co_await stream.Read(item) ? absl::OkStatus() : absl::UnknownError("no message");
}

TEST_F(StreamTest, CancellingAReadLosesNoMessage) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    Item item;
    for (uint64_t i = 1; i < 200; ++i) {
      // The read begins before there is anything, and is given up in any state.
      auto write = [&]() -> Task<bool> {
        (void)co_await stream.Write(ItemOf(i, 100));
        for (uint64_t n = 0; n < i % 7; ++n) (void)co_await SayOnce();
        co_return true;
      };
      auto first = co_await WhenAny(stream.Read(item), write());
      // A read that has ended, though another was first, has the message.
      if (first.index() == 1 && item.number() != i && !co_await stream.Read(item)) {
        co_return absl::DataLossError("no message");
      }
      EXPECT_EQ(item.number(), i);
    }
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamTest, AReadMayHaveADeadlineOfItsOwn) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    Item item;
    for (uint64_t i = 0; i < 3; ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i)));
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.TryRead(item));
      EXPECT_TRUE(read);
      EXPECT_EQ(item.number(), i);
      const absl::StatusOr<bool> late =
          co_await WithDeadline(stream.TryRead(item), std::chrono::milliseconds(1));
      EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.WritesDone());
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.TryRead(item));
    EXPECT_FALSE(read);
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  auto fail = [&]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream =
        stub_->Ignore({.deadline = std::chrono::milliseconds(20)});
    Item item;
    const absl::StatusOr<bool> read = co_await stream.TryRead(item);
    EXPECT_FALSE(read.value_or(false));
    // The server may find first that the deadline has passed: its status ends the stream.
    if (!read.ok()) co_return read.status();
    co_return co_await stream.Finish();
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(Run(fail())));
}

TEST_F(StreamTest, AReadThatIsDestroyedLosesNoMessage) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Scheduler& scheduler = client_runtime_->executor(0);
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    for (uint64_t i = 1; i < 500; ++i) {
      Item item;
      {
        const Abandonable read(scheduler, ReadInto(stream, item));
        VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i, 100)));
        for (uint64_t n = 0; n < i % 4; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
        if (read.ended()) {
          EXPECT_EQ(item.number(), i);
          continue;
        }
      }
      Item again;
      if (!co_await stream.Read(again)) co_return absl::DataLossError("no message");
      EXPECT_EQ(again.number(), i);
    }
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// Messages of 4096, 2048 and 1024 bytes with what each costs. The first two of a stream count in
// its window alone, so that the window of the link, 16 MiB, is used up to 2048 bytes by 62 messages
// of each of 66 streams, and 3 and a half of another.
TEST_F(StreamTest, ASenderThatGivesUpLetsTheNextOneGo) {
  Start();
  const Item large = ItemOf(0, 4069), half = ItemOf(0, 2021), small = ItemOf(0, 997);
  auto write = [](ClientReaderWriter<Item, Item>& stream, const Item& item, CancelScope& scope,
                  std::optional<absl::Status>& ended) -> Task<void> {
    auto once = [&]() -> Task<absl::Status> { co_return co_await stream.Write(item); };
    ended = co_await once().In(&scope);
  };
  auto run = [&]() -> Task<absl::Status> {
    std::vector<ClientReaderWriter<Item, Item>> streams;
    for (int i = 0; i < 69; ++i) {
      streams.push_back(stub_->Ignore());
      const int messages = i < 66 ? 64 : i == 66 ? 2 + 3 : 2;
      for (int n = 0; n < messages; ++n) {
        VERBENA_CO_RETURN_IF_ERROR(co_await streams[i].Write(large));
      }
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await streams[66].Write(half));
    CancelScope first_scope, second_scope;
    std::optional<absl::Status> first, second;
    TaskScope tasks(co_await CurrentContext());
    tasks.Spawn(write(streams[67], large, first_scope, first));
    tasks.Spawn(write(streams[68], small, second_scope, second));
    for (int i = 0; i < 20; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    EXPECT_FALSE(first.has_value());
    EXPECT_FALSE(second.has_value());
    first_scope.Request(absl::StatusCode::kCancelled);
    for (int i = 0; i < 5000 && !second.has_value(); ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    }
    EXPECT_TRUE(second.has_value()) << "the next sender was forgotten";
    second_scope.Request(absl::StatusCode::kCancelled);
    co_await tasks.Join();
    EXPECT_EQ(first->code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(*second, absl::OkStatus());
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamTest, TenThousandStreamsAreOpenOnOneLink) {
  Start({.max_concurrent_calls = 20000, .max_calls_per_client = 20000});
  constexpr int kStreams = 10000;
  auto run = [&]() -> Task<absl::Status> {
    std::vector<ClientReaderWriter<Item, Item>> streams;
    for (int i = 0; i < kStreams; ++i) streams.push_back(stub_->Echo());
    for (int i = 0; i < kStreams; ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await streams[i].Write(ItemOf(i, 300)));
    }
    for (int i = kStreams; i-- > 0;) {
      std::optional<Item> item = co_await streams[i].Read();
      if (!item.has_value()) co_return co_await streams[i].Finish();
      EXPECT_EQ(item->number(), static_cast<uint64_t>(i));
    }
    EXPECT_EQ(service_.running, kStreams);
    for (auto& stream : streams) VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(service_.running, 0);
  Eventually([this] { return server_runtime_->endpoint_stats(0).links == 1; },
             "one link served all");
}

}  // namespace
}  // namespace verbena
