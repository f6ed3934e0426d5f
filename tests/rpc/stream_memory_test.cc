// One peer's streams take no more than their share of an executor's memory, whatever of them waits
// there: messages that nobody reads, large messages that come or leave in parts, large requests. A
// stream that finds the share used up fails alone, and its memory is free again.

#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/stream/memory.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/stream/beside.h"
#include "verbena/rpc/stream/receiver.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena {
namespace stream_memory_test {

using internal::StreamMemory;
using internal::StreamShare;
using ::testing::HasSubstr;

TEST(StreamShareTest, AShareIsAPartOfTheOneAboveAndOfTheBudget) {
  StreamMemory memory(1000);
  auto source = std::make_shared<StreamShare>(memory, 750, "the source");
  StreamShare one(memory, 500, "one", source);
  StreamShare two(memory, 500, "two", source);
  StreamShare other(memory, 500, "other");
  EXPECT_TRUE(one.TryReserve(500));
  EXPECT_FALSE(one.TryReserve(1));
  EXPECT_THAT(one.Exhausted(1).message(), HasSubstr("one have 500 of 500 bytes"));
  EXPECT_TRUE(two.TryReserve(250));
  EXPECT_FALSE(two.TryReserve(1));
  EXPECT_THAT(two.Exhausted(1).message(), HasSubstr("the source have 750 of 750 bytes"));
  EXPECT_TRUE(other.TryReserve(250));
  EXPECT_FALSE(other.TryReserve(1));
  EXPECT_THAT(other.Exhausted(1).message(), HasSubstr("all streams have 1000 of 1000 bytes"));
  one.EndReservation(500);
  EXPECT_TRUE(two.TryReserve(250));
  two.EndReservation(500);
  other.EndReservation(250);
  EXPECT_EQ(memory.used_bytes(), 0u);
  EXPECT_EQ(source->used_bytes(), 0u);
}

TEST(StreamShareTest, ChunksCountWhileTheyAreOut) {
  StreamMemory memory(3 * StreamMemory::kChunkBytes);
  StreamShare share(memory, 2 * StreamMemory::kChunkBytes, "one");
  internal::StreamChunk* first = share.Allocate(10);
  internal::StreamChunk* second = share.Allocate(10);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(share.Allocate(10), nullptr);
  share.Free(first);
  EXPECT_EQ(share.Allocate(StreamMemory::kChunkBytes + 1), nullptr);
  first = share.Allocate(10);
  ASSERT_NE(first, nullptr);
  share.Free(first);
  share.Free(second);
  EXPECT_EQ(memory.used_bytes(), 0u);
}

TEST(StreamShareTest, ALargeMessageLeavesLittleMemoryToTheNext) {
  std::string small(internal::kMaxKeptBytes / 2, 's');
  const size_t capacity = small.capacity();
  internal::EmptyAndKeepLittle(small);
  EXPECT_TRUE(small.empty());
  EXPECT_EQ(small.capacity(), capacity);
  std::string large(internal::kMaxKeptBytes + 1, 'l');
  internal::EmptyAndKeepLittle(large);
  EXPECT_TRUE(large.empty());
  EXPECT_LE(large.capacity(), internal::kMaxKeptBytes);
}

TEST(StreamAssemblyTest, AMessageInPartsHasNoMoreMemoryThanItCountsFor) {
  constexpr uint32_t kMessage = 1000000, kPart = 4000;
  const std::string part(kPart, 'p');
  internal::StreamAssembly assembly;
  assembly.Begin({.bytes = kPart, .total = kMessage, .payload = 0, .own = false}, Buffer());
  size_t counted = 0;
  while (!assembly.complete()) {
    counted += assembly.MoreRoomFor(kPart);
    assembly.Add(part.data(), kPart);
    EXPECT_EQ(assembly.room(), counted);
    EXPECT_LE(counted, 2 * assembly.message().size());
    EXPECT_LE(assembly.message().capacity(), counted);
  }
  EXPECT_EQ(counted, kMessage);
  EXPECT_EQ(assembly.message().size(), kMessage);
}

TEST(BesideReceiverTest, BytesBesideMessagesHaveNoMoreMemoryThanTheyCountFor) {
  constexpr size_t kBytes = 5000;
  StreamMemory memory(1 << 20);
  auto share = std::make_shared<StreamShare>(memory, 2 * kBytes, "one");
  {
    internal::BesideReceiver receiver(share, kBytes);
    internal::FrameHeader frame = internal::BesideFrame({});
    frame.body_bytes = 1;
    while (!receiver.complete()) {
      ASSERT_EQ(receiver.Add(frame, "b"), absl::OkStatus());
      EXPECT_EQ(receiver.kept(), absl::OkStatus());
      EXPECT_EQ(memory.used_bytes(), receiver.room());
      EXPECT_LE(receiver.bytes().capacity(), std::max(receiver.room(), std::string().capacity()));
    }
    EXPECT_EQ(receiver.bytes(), std::string(kBytes, 'b'));
    EXPECT_EQ(receiver.room(), kBytes);
    // Without memory nothing is kept, and nothing counts.
    internal::BesideReceiver second(share, 3 * kBytes);
    const std::string large(3 * kBytes, 'l');
    frame.body_bytes = 3 * kBytes;
    EXPECT_EQ(second.Add(frame, large.data()), absl::OkStatus());
    EXPECT_TRUE(absl::IsResourceExhausted(second.kept())) << second.kept();
    EXPECT_EQ(memory.used_bytes(), kBytes);
  }
  EXPECT_EQ(memory.used_bytes(), 0u);
}

class StreamMemoryTest : public StreamTest {
 protected:
  // A client has half of the budget, all clients of one source three quarters.
  void StartWith(size_t budget) {
    RuntimeOptions large;
    large.limits.max_message_bytes = size_t{64} << 20;
    server_runtime_ = StartRuntime(large);
    auto bound = [&]() -> Task<void> {
      memory().set_budget_bytes(budget);
      co_return;
    };
    server_runtime_->BlockOn(bound());
    ServeWith(service_);
    StartClient(server_->address(), large);
  }

  StreamMemory& memory() { return internal::CoreOf(*server_runtime_).shard(0).stream_memory(); }
  size_t used_bytes() {
    auto used = [this]() -> Task<size_t> { co_return memory().used_bytes(); };
    return server_runtime_->BlockOn(used());
  }

  testing::CountRequest RequestOf(uint32_t count, uint32_t bytes, size_t filler = 0) {
    testing::CountRequest request;
    request.set_count(count);
    request.set_bytes(bytes);
    request.set_filler(std::string(filler, 'f'));
    return request;
  }
};

constexpr size_t kMiB = size_t{1} << 20;

TEST_F(StreamMemoryTest, OneClientsUnreadMessagesLeaveMemoryToOthers) {
  StartWith(4 * kMiB);
  std::unique_ptr<Runtime> other_runtime = StartRuntime();
  Channel other_channel(*other_runtime, server_->address());
  testing::Streaming::Stub other(other_channel);
  service_.reads_later = true;
  // As much as the whole budget, if nothing bounded it.
  std::vector<ClientWriter<Item, testing::Summary>> writers;
  auto write = [&]() -> Task<absl::Status> {
    for (int i = 0; i < 20; ++i) {
      writers.push_back(stub_->Sum());
      for (int n = 0; n < 200; ++n) {
        VERBENA_CO_RETURN_IF_ERROR(co_await writers.back().Write(ItemOf(n, 1000)));
      }
    }
    // All of it has arrived.
    co_return co_await SayOnce();
  };
  ASSERT_EQ(Run(write()), absl::OkStatus());
  auto others = [&]() -> Task<absl::Status> {
    ClientWriter<Item, testing::Summary> writer = other.Sum();
    for (int n = 0; n < 200; ++n) {
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(n, 1000)));
    }
    VERBENA_CO_RETURN_IF_ERROR((co_await other.Say(ItemOf(1))).status());
    service_.reads_later = false;
    absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
    VERBENA_CO_RETURN_IF_ERROR(sum.status());
    EXPECT_EQ(sum->count(), 200u);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(other_runtime->BlockOn(others()), absl::OkStatus());
  int failed = 0;
  auto finish = [&]() -> Task<absl::Status> {
    for (auto& writer : writers) {
      const absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
      if (sum.ok()) {
        EXPECT_EQ(sum->count(), 200u);
        continue;
      }
      ++failed;
      EXPECT_TRUE(absl::IsResourceExhausted(sum.status())) << sum.status();
      EXPECT_THAT(std::string(sum.status().message()), HasSubstr("one client's streams have"));
    }
    writers.clear();
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(finish()), absl::OkStatus());
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 20);
  EXPECT_EQ(used_bytes(), 0u);
  // The client has its share again.
  const absl::StatusOr<testing::Summary> sum = Run(SumOf(2000, 1000));
  EXPECT_TRUE(sum.ok()) << sum.status();
}

TEST_F(StreamMemoryTest, AMessageThatFindsNoMemoryFailsItsStreamAndLeavesNone) {
  StartWith(kMiB);
  const absl::StatusOr<testing::Summary> large = Run(SumOf(1, kMiB));
  EXPECT_TRUE(absl::IsResourceExhausted(large.status())) << large.status();
  EXPECT_EQ(used_bytes(), 0u);
  const absl::StatusOr<testing::Summary> small = Run(SumOf(3, kMiB / 4));
  EXPECT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(used_bytes(), 0u);
}

// Each stream is given up at another moment, most of them within a message.
TEST_F(StreamMemoryTest, AStreamThatIsGivenUpWithinAMessageLeavesNoMemory) {
  StartWith(StreamMemory::kBudgetBytes);
  auto run = [&]() -> Task<absl::Status> {
    for (int i = 1; i <= 40; ++i) {
      ClientWriter<Item, testing::Summary> writer = stub_->Sum();
      auto write = [&]() -> Task<absl::Status> {
        co_return co_await writer.Write(ItemOf(1, 8 * kMiB));
      };
      auto calls = [&]() -> Task<absl::Status> {
        for (int n = 0; n < i; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
        co_return absl::OkStatus();
      };
      (void)co_await WhenAny(write(), calls());
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "all handlers end");
  Eventually([this] { return used_bytes() == 0; }, "the memory is free");
}

// Four requests of 1 MB are all that a client's share takes.
TEST_F(StreamMemoryTest, ALargeRequestCountsUntilItsHandlerHasEnded) {
  StartWith(8 * kMiB);
  auto run = [&]() -> Task<absl::Status> {
    std::vector<ClientReader<Item>> readers;
    for (int i = 0; i < 4; ++i) {
      // The handler waits, since the client does not read.
      readers.push_back(stub_->Count(RequestOf(100000, 1000, 1000000)));
      EXPECT_TRUE((co_await readers.back().Read()).has_value());
    }
    ClientReader<Item> fifth = stub_->Count(RequestOf(1, 1000, 1000000));
    EXPECT_FALSE((co_await fifth.Read()).has_value());
    const absl::Status ended = co_await fifth.Finish();
    EXPECT_TRUE(absl::IsResourceExhausted(ended)) << ended;
    EXPECT_THAT(std::string(ended.message()), HasSubstr("one client's streams have"));
    // Small requests take none of it.
    EXPECT_EQ(co_await CountOf(10, 1000), absl::OkStatus());
    readers.pop_back();
    while (service_.running != 3) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    ClientReader<Item> sixth = stub_->Count(RequestOf(1, 1000, 1000000));
    co_return co_await ReadAll(sixth, 1, 1000);
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return used_bytes() == 0; }, "the memory is free");
}

// Four handlers have what is all of a client's share, and await something else.
TEST_F(StreamMemoryTest, ALargeMessageCountsUntilTheNextRead) {
  StartWith(8 * kMiB);
  service_.pauses = true;
  std::vector<ClientWriter<Item, testing::Summary>> writers;
  auto fill = [&]() -> Task<absl::Status> {
    for (int i = 0; i < 4; ++i) {
      writers.push_back(stub_->Sum());
      VERBENA_CO_RETURN_IF_ERROR(co_await writers.back().Write(ItemOf(1, 1000000)));
    }
    while (service_.read_ < 4) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    const absl::StatusOr<testing::Summary> fifth = co_await SumOf(1, 1000000);
    EXPECT_TRUE(absl::IsResourceExhausted(fifth.status())) << fifth.status();
    EXPECT_THAT(std::string(fifth.status().message()), HasSubstr("one client's streams have"));
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(fill()), absl::OkStatus());
  EXPECT_GE(used_bytes(), 4000000u);
  service_.pauses = false;
  Eventually([this] { return used_bytes() == 0; }, "the next Read of each has begun");
  auto finish = [&]() -> Task<absl::Status> {
    for (auto& writer : writers) {
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(1, 1000000)));
      const absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
      VERBENA_CO_RETURN_IF_ERROR(sum.status());
      EXPECT_EQ(sum->count(), 2u);
    }
    writers.clear();
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(finish()), absl::OkStatus());
  EXPECT_EQ(used_bytes(), 0u);
}

TEST_F(StreamMemoryTest, ALargeMessageDoesNotCountBeyondFinish) {
  StartWith(8 * kMiB);
  auto run = [&]() -> Task<absl::Status> {
    const StreamMemory& memory = internal::CoreOf(*client_runtime_).shard(0).stream_memory();
    ClientReader<Item> reader = stub_->Count(RequestOf(1, 1000000));
    EXPECT_TRUE((co_await reader.Read()).has_value());
    EXPECT_GE(memory.used_bytes(), 1000000u);
    VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
    EXPECT_EQ(memory.used_bytes(), 0u) << "while the reader lives";
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// Two handlers hold a message of 1.5 MB that its client does not read, which leaves too little of
// 4 MiB for a third.
TEST_F(StreamMemoryTest, AWriteThatFindsNoMemoryFailsAlone) {
  StartWith(8 * kMiB);
  constexpr uint32_t kBytes = 1500000;
  auto run = [&]() -> Task<absl::Status> {
    std::vector<ClientReader<Item>> readers;
    for (int i = 0; i < 2; ++i) {
      readers.push_back(stub_->Count(RequestOf(2, kBytes)));
      EXPECT_TRUE((co_await readers.back().Read()).has_value());
    }
    // The second message of each is on its way: two Writes of three have begun.
    while (service_.written_ < 2) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    const absl::Status third = co_await CountOf(1, kBytes);
    EXPECT_TRUE(absl::IsResourceExhausted(third)) << third;
    EXPECT_THAT(std::string(third.message()), HasSubstr("one client's streams have"));
    EXPECT_EQ(co_await CountOf(100, 1000), absl::OkStatus());
    for (ClientReader<Item>& reader : readers) {
      EXPECT_TRUE((co_await reader.Read()).has_value());
      EXPECT_EQ(co_await reader.Finish(), absl::OkStatus());
    }
    co_return co_await CountOf(1, kBytes);
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(used_bytes(), 0u);
}

TEST_F(StreamMemoryTest, AStreamWhoseClientIsGoneLeavesNoMemory) {
  StartWith(StreamMemory::kBudgetBytes);
  service_.reads_later = true;
  auto run = [&]() -> Task<absl::Status> {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    for (int n = 0; n < 200; ++n) {
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(n, 1000)));
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  client_runtime_ = StartRuntime();
  Eventually([this] { return used_bytes() == 0; }, "the memory is free");
}

}  // namespace stream_memory_test
}  // namespace verbena
