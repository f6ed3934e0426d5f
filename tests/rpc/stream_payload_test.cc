// Payloads of streams' messages come over whole and in order with the messages, of any size, in the
// Buffers that unary calls give. Their memory is bounded, and comes home however a stream ends.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/abandonable.h"
#include "tests/rpc/stream_payload_service.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

using EchoStream = ClientReaderWriter<PayloadItem, PayloadItem>;

Task<absl::Status> ReadOnce(EchoStream& stream, PayloadItem& item) {
  VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.TryRead(item));
  co_return read ? absl::OkStatus() : absl::UnknownError("no message");
}

Task<absl::Status> WriteOnce(EchoStream& stream, const testing::StreamItem& item,
                             BufferView payload) {
  co_return co_await stream.Write(item, payload);
}

// Sizes around those of a frame and of a part, for messages of other sizes, too.
TEST_F(StreamPayloadTest, PayloadsOfAllSizesComeBackWhole) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    EchoStream stream = stub_->Echo();
    PayloadItem item;
    uint64_t number = 0;
    for (size_t message : {0, 100, 5000}) {
      for (size_t bytes : {0u, 1u, 3900u, 4040u, 4050u, 4053u, 4054u, 4055u, 4056u, 4057u, 4097u,
                           8112u, 32767u, 32768u, 32769u, 262144u, 1u << 20, 5u << 20}) {
        if (message > 0 && bytes > 100000 && bytes != 262144) continue;
        ++number;
        VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await Filled(bytes, number));
        auto write = [&]() -> Task<absl::Status> {
          co_return co_await stream.Write(Numbered(number, message), payload.view());
        };
        auto [written, readen] = co_await WhenAll(write(), ReadOnce(stream, item));
        VERBENA_CO_RETURN_IF_ERROR(written);
        VERBENA_CO_RETURN_IF_ERROR(readen);
        EXPECT_EQ(item->number(), number);
        EXPECT_EQ(item->data().size(), message);
        EXPECT_TRUE(item.has_payload);
        EXPECT_EQ(item.payload.size(), bytes);
        EXPECT_TRUE(HasPayloadOf(item.payload.view(), number)) << bytes;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(item.payload.data()) % 4096, 0u);
      }
    }
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

TEST_F(StreamPayloadTest, MessagesWithAndWithoutPayloadsKeepTheirOrder) {
  Start();
  constexpr uint64_t kItems = 300;
  // As one that was read is passed on.
  auto write_whole = [&](EchoStream& stream, uint64_t number) -> Task<absl::Status> {
    PayloadItem item{.message = Numbered(number), .has_payload = number % 3 != 0};
    if (number % 3 == 2) {
      VERBENA_CO_ASSIGN_OR_RETURN(item.payload, co_await Filled(number * number, number));
    }
    co_return co_await stream.Write(item);
  };
  auto run = [&]() -> Task<absl::Status> {
    EchoStream stream = stub_->Echo();
    auto write = [&]() -> Task<absl::Status> {
      for (uint64_t i = 0; i < kItems; ++i) {
        if (i % 2 == 0) {
          VERBENA_CO_RETURN_IF_ERROR(co_await write_whole(stream, i));
        } else if (i % 3 == 0) {
          VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(i, i * 20)));
        } else if (i % 3 == 1) {
          VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(i), BufferView()));
        } else {
          VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await Filled(i * i, i));
          VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(i), payload.view()));
        }
      }
      co_return co_await stream.WritesDone();
    };
    auto read = [&]() -> Task<absl::Status> {
      uint64_t next = 0;
      while (std::optional<PayloadItem> item = co_await stream.Read()) {
        EXPECT_EQ(item->message.number(), next);
        EXPECT_EQ(item->has_payload, next % 3 != 0);
        EXPECT_EQ(item->payload.size(), next % 3 == 2 ? next * next : 0);
        EXPECT_TRUE(HasPayloadOf(item->payload.view(), next));
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
  ExpectNothingHeld();
}

// Its messages lie in the reader's memory, as many as the window takes, before it reads.
TEST_F(StreamPayloadTest, AWriterThatIsAheadOfItsReaderLosesNothing) {
  Start();
  auto run = [&](uint32_t bytes) -> Task<absl::Status> {
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(40, bytes));
    PayloadItem item;
    for (uint64_t i = 0; i < 40; ++i) {
      for (int n = 0; n < 10; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      if (!co_await reader.Read(item)) break;
      EXPECT_EQ(item->number(), i);
      EXPECT_EQ(item.payload.size(), bytes);
      EXPECT_TRUE(HasPayloadOf(item.payload.view(), i));
    }
    EXPECT_FALSE(co_await reader.Read(item));
    co_return co_await reader.Finish();
  };
  for (uint32_t bytes : {100u, 4096u, 40000u, 300000u}) {
    EXPECT_EQ(Run(run(bytes)), absl::OkStatus()) << bytes;
  }
  absl::StatusOr<testing::Summary> sum = Run(CollectOf(20, 100000));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(sum->count(), 20u);
  EXPECT_EQ(sum->bytes(), 2'000'000u);
  ExpectNothingHeld();
}

TEST_F(StreamPayloadTest, AReadUsesItsBufferAgain) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(10, 50000));
    PayloadItem item;
    VERBENA_CO_ASSIGN_OR_RETURN(item.payload, co_await channel_->AllocateBuffer(60000));
    const char* const memory = item.payload.data();
    while (co_await reader.Read(item)) {
      EXPECT_EQ(item.payload.data(), memory);
      EXPECT_EQ(item.payload.size(), 50000u);
    }
    // The memory is still the caller's, without bytes.
    EXPECT_EQ(item.payload.data(), memory);
    EXPECT_FALSE(item.has_payload);
    EXPECT_EQ(item.payload.size(), 0u);
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

TEST_F(StreamPayloadTest, APayloadLargerThanTheLargestIsRefusedAndTheStreamGoesOn) {
  RuntimeOptions small;
  small.limits.max_payload_bytes = 100000;
  small.limits.max_message_bytes = 200000;
  Start({}, small, small);
  auto run = [&]() -> Task<absl::Status> {
    ClientWriter<PayloadItem, testing::Summary> writer = stub_->Collect();
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await Filled(100001, 1));
    EXPECT_TRUE(absl::IsResourceExhausted(co_await writer.Write(Numbered(1), payload.view())));
    payload.set_size(100000);
    EXPECT_EQ(co_await writer.Write(Numbered(1, 190000), payload.view()), absl::OkStatus());
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.WritesDone());
    absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
    VERBENA_CO_RETURN_IF_ERROR(sum.status());
    EXPECT_EQ(sum->bytes(), 100000u);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamPayloadTest, AHandlerThatEndsItsStreamWithAPayloadFailsThatCall) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    auto stream = stub_->Misuse();
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u);
}

// --- Memory --------------------------------------------------------------------------------------

TEST_F(StreamPayloadTest, AHandlerThatKeepsMoreThanItsClientsShareHearsOfIt) {
  // The server's. It goes at the machine's pace while memory is registered for the first messages.
  MovedClock clock;
  const ServerOptions options{.max_bytes_per_client = 1 << 20};
  Start(options, {.clock = &clock});
  JoinHandle<absl::StatusOr<testing::Summary>> call = client_runtime_->Spawn(CollectOf(100, 65536));
  Eventually([this] { return service_.collected >= 15; }, "a handler has its client's share");
  clock.moved_by = options.memory_wait;
  Eventually(
      [&] {
        (void)server_->stats();  // wakes the executor, whose clock has moved
        return call.done();
      },
      "the wait of the next message is over");
  absl::StatusOr<testing::Summary> sum = call.Join();
  EXPECT_EQ(sum.status().code(), absl::StatusCode::kResourceExhausted) << sum.status();
  EXPECT_THAT(sum.status().message(), ::testing::HasSubstr("max_bytes_per_client"));
  ExpectNothingHeld();
  sum = Run(CollectOf(15, 65536));
  EXPECT_EQ(sum.status(), absl::OkStatus());
  ExpectNothingHeld();
  server_.reset();
  server_runtime_.reset();
}

// --- Ends in the middle --------------------------------------------------------------------------

TEST_F(StreamPayloadTest, AReadThatIsDestroyedLosesNoPayload) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Scheduler& scheduler = client_runtime_->executor(0);
    EchoStream stream = stub_->Echo();
    for (uint64_t i = 1; i < 300; ++i) {
      // Some in one frame, some in parts.
      VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload,
                                  co_await Filled(i % 5 == 0 ? 20000 : 500, i));
      PayloadItem item;
      {
        const Abandonable read(scheduler, ReadOnce(stream, item));
        VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(i), payload.view()));
        for (uint64_t n = 0; n < i % 4; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
        if (read.ended()) {
          EXPECT_EQ(item->number(), i);
          EXPECT_EQ(item.payload.size(), payload.size());
          continue;
        }
      }
      PayloadItem again;
      if (!co_await stream.Read(again)) co_return absl::DataLossError("no message");
      EXPECT_EQ(again->number(), i);
      EXPECT_TRUE(again.has_payload);
      EXPECT_EQ(again.payload.size(), payload.size());
      EXPECT_TRUE(HasPayloadOf(again.payload.view(), i));
    }
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

// The caller's Buffer is its own again as soon as the Write is gone.
TEST_F(StreamPayloadTest, AWriteThatIsDestroyedSendsAllOfItsPayloadOrNothing) {
  Start();
  constexpr size_t kBytes = 600000;
  auto run = [&]() -> Task<absl::Status> {
    Scheduler& scheduler = client_runtime_->executor(0);
    for (uint64_t i = 1; i < 30; ++i) {
      EchoStream stream = stub_->Echo();
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await Filled(kBytes, i));
      const Item item = Numbered(i);
      {
        const Abandonable write(scheduler, WriteOnce(stream, item, payload.view()));
        for (uint64_t n = 0; n < i % 10; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      }
      std::memset(payload.data(), 'x', payload.size());
      payload.Reset();
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.WritesDone());
      while (std::optional<PayloadItem> got = co_await stream.Read()) {
        EXPECT_EQ(got->message.number(), i);
        EXPECT_EQ(got->payload.size(), kBytes);
        EXPECT_TRUE(HasPayloadOf(got->payload.view(), i)) << i;
      }
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

// The memory that keeps the rest of such a payload is bounded, as that of all messages is.
TEST_F(StreamPayloadTest, AWriteThatIsDestroyedKeepsItsPayloadWithinTheShare) {
  Start();
  constexpr size_t kBudget = 8 << 20;  // half of it is of one server
  constexpr size_t kBytes = 3 << 20;
  internal::StreamMemory& memory = internal::CoreOf(*client_runtime_).shard(0).stream_memory();
  auto run = [&]() -> Task<absl::Status> {
    memory.set_budget_bytes(kBudget);
    Scheduler& scheduler = client_runtime_->executor(0);
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await Filled(kBytes, 1));
    std::vector<EchoStream> streams;
    for (int i = 0; i < 2; ++i) streams.push_back(stub_->Hold());
    for (EchoStream& stream : streams) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(1), payload.view()));
      const Item item = Numbered(2);
      const Abandonable write(scheduler, WriteOnce(stream, item, payload.view()));
      // Nobody reads it. What its window takes has gone ahead of these.
      for (int n = 0; n < 20; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      EXPECT_FALSE(write.ended());
    }
    // The first keeps what has not left; there is no room for as much of the second.
    EXPECT_GT(memory.used_bytes(), kBytes / 2);
    EXPECT_LT(memory.used_bytes(), kBytes);
    const absl::Status next = co_await streams[1].Write(Numbered(3), payload.view());
    EXPECT_TRUE(absl::IsResourceExhausted(next)) << next;
    streams.clear();
    EXPECT_EQ(memory.used_bytes(), 0u);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

TEST_F(StreamPayloadTest, AbandoningAnyAwaitGivesItsMemoryBack) {
  Start();
  auto chat = [&](uint64_t i) -> Task<absl::Status> {
    EchoStream stream = i % 4 == 0 ? stub_->Hold() : stub_->Echo();
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload,
                                co_await Filled(i % 3 == 0 ? 500000 : 1000, i));
    auto write = [&]() -> Task<absl::Status> {
      for (;;) VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(i), payload.view()));
    };
    auto read = [&]() -> Task<absl::Status> {
      while ((co_await stream.Read()).has_value()) {
      }
      co_return absl::OkStatus();
    };
    (void)co_await WhenAll(write(), read());
    co_return absl::UnknownError("not reached");
  };
  auto run = [&]() -> Task<absl::Status> {
    Scheduler& scheduler = client_runtime_->executor(0);
    for (uint64_t i = 0; i < 100; ++i) {
      const Abandonable one(scheduler, chat(i));
      const Abandonable two(scheduler, chat(i + 1));
      for (uint64_t n = 0; n < i % 20; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      EXPECT_FALSE(one.ended());
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

// At the server's reader, at its writer, and at the client's.
TEST_F(StreamPayloadTest, AStreamThatEndsWithinAMessageGivesItsMemoryBack) {
  MovedClock clock;  // the client's
  RuntimeOptions client{.clock = &clock};
  client.limits.ping_interval = std::chrono::hours(100);
  client.limits.idle_timeout = Duration::zero();
  Start({}, {}, std::move(client));
  auto run = [&]() -> Task<absl::Status> {
    EchoStream stream = stub_->Hold({.deadline = std::chrono::hours(1)});
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await Filled(2 << 20, 1));
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(1), payload.view()));
    absl::Status written;
    TaskScope tasks(co_await CurrentContext());
    auto write = [&]() -> Task<void> {
      written = co_await stream.Write(Numbered(2), payload.view());
    };
    tasks.Spawn(write());
    // Nobody reads it. What its window takes has gone ahead of these.
    for (int n = 0; n < 20; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    EXPECT_EQ(tasks.size(), 1u);
    clock.moved_by = std::chrono::hours(1);
    co_await tasks.Join();
    EXPECT_EQ(written.code(), absl::StatusCode::kDeadlineExceeded) << written;
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kDeadlineExceeded);
  ExpectNothingHeld();
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
}

TEST_F(StreamPayloadTest, ALostLinkGivesTheMemoryOfBothSidesBack) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    EchoStream stream = stub_->Echo();
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(1000, 300000));
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await Filled(2 << 20, 1));
    EXPECT_TRUE((co_await reader.Read()).has_value());
    auto write = [&]() -> Task<absl::Status> {
      for (;;) VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(Numbered(1), payload.view()));
    };
    auto read = [&]() -> Task<absl::Status> {
      while ((co_await reader.Read()).has_value()) {
      }
      co_return absl::OkStatus();
    };
    auto lose = [&]() -> Task<absl::Status> {
      for (int n = 0; n < 20; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      LoseLink();
      co_return absl::OkStatus();
    };
    auto [written, readen, lost] = co_await WhenAll(write(), read(), lose());
    VERBENA_CO_RETURN_IF_ERROR(lost);
    EXPECT_EQ(written.code(), absl::StatusCode::kUnavailable) << written;
    EXPECT_EQ((co_await reader.Finish()).code(), absl::StatusCode::kUnavailable);
    co_return readen;
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

}  // namespace
}  // namespace verbena
