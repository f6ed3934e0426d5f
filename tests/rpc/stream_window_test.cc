// Streams that nobody reads, however many, do not stop the other streams of their link. Window that
// is given back is the next sender's.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/stream_service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

// More than 66 of these use up the window of a link.
constexpr int kUnread = 80;
constexpr std::chrono::seconds kPatience(40);

class StreamWindowTest : public StreamTest {
 protected:
  using Chat = ClientReaderWriter<Item, Item>;

  static Task<void> In(CancelScope& scope, Task<void> task) { co_await std::move(task).In(&scope); }
  static Task<void> WriteAll(Chat& stream) {
    while ((co_await stream.Write(ItemOf(1, 4000))).ok()) {
    }
  }

  static Task<absl::Status> Echo(Chat& stream, int count, size_t bytes) {
    for (int i = 0; i < count; ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i, bytes)));
      const std::optional<Item> item = co_await stream.Read();
      if (!item.has_value()) co_return co_await stream.Finish();
      EXPECT_EQ(item->number(), static_cast<uint64_t>(i));
    }
    co_return absl::OkStatus();
  }

  // Calls go on until what was written meanwhile has used up each window that it can.
  Task<absl::Status> Settle() {
    for (int i = 0; i < 300; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    co_return absl::OkStatus();
  }
};

TEST_F(StreamWindowTest, AStreamThatIsReadGoesOnBesideManyThatAreNot) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    // So much that the sender has not heard of all that was read.
    Chat before = stub_->Echo({.deadline = kPatience});
    VERBENA_CO_RETURN_IF_ERROR(co_await Echo(before, 50, 1000));
    std::vector<Chat> unread;
    for (int i = 0; i < kUnread; ++i) unread.push_back(stub_->Ignore());
    CancelScope scope;
    TaskScope tasks(co_await CurrentContext());
    for (Chat& stream : unread) tasks.Spawn(In(scope, WriteAll(stream)));
    VERBENA_CO_RETURN_IF_ERROR(co_await Settle());
    absl::Status ended = co_await Echo(before, 200, 1000);
    // One that begins now, and messages larger than a frame.
    Chat now = stub_->Echo({.deadline = kPatience});
    if (ended.ok()) ended = co_await Echo(now, 300, 500);
    if (ended.ok()) ended = co_await Echo(now, 3, 300000);
    scope.Request(absl::StatusCode::kCancelled);
    co_await tasks.Join();
    co_return ended;
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the abandoned streams' handlers end");
}

// Messages of 4096 and 1024 bytes with what each costs. The first two large ones of a stream count
// in its window alone, so that 62 messages of each of 66 streams, and 3 of another, use up the
// window of the link, 16 MiB, but for 4096 bytes.
TEST_F(StreamWindowTest, AMessageThatChangesLeavesItsWindowToTheNextSender) {
  RuntimeOptions few_credits;
  few_credits.limits.max_credits = few_credits.limits.initial_credits;
  Start({}, std::move(few_credits));
  const Item large = ItemOf(0, 4069), small = ItemOf(0, 997);
  Item changes = large;
  auto write = [](Chat& stream, const Item& item,
                  std::optional<absl::Status>& ended) -> Task<void> {
    ended = co_await stream.Write(item);
  };
  auto change = [&]() -> Task<void> {
    changes.set_data(std::string(2000, 'c'));
    co_return;
  };
  auto run = [&]() -> Task<absl::Status> {
    constexpr int kChanges = 67, kNext = 68, kStreams = 69 + 10;
    std::vector<Chat> streams;
    for (int i = 0; i < kStreams; ++i) {
      streams.push_back(stub_->Ignore());
      const int messages = i < 66 ? 64 : i == 66 ? 2 + 3 : i <= kNext ? 2 : 1;
      for (int n = 0; n < messages; ++n) {
        VERBENA_CO_RETURN_IF_ERROR(co_await streams[i].Write(large));
      }
    }
    // The credits are back.
    for (int n = 0; n < 20; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    std::optional<absl::Status> ahead[10], changed, next;
    TaskScope tasks(co_await CurrentContext());
    // In one turn: these take what room the link has.
    for (int n = 0; n < 10; ++n) tasks.Spawn(write(streams[69 + n], large, ahead[n]));
    tasks.Spawn(write(streams[kChanges], changes, changed));
    tasks.Spawn(write(streams[kNext], small, next));
    tasks.Spawn(change());
    for (int n = 0; n < 5000 && !next.has_value(); ++n) {
      VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    }
    EXPECT_TRUE(next.has_value()) << "the next sender was forgotten";
    if (!next.has_value()) streams.clear();
    co_await tasks.Join();
    EXPECT_TRUE(changed.has_value() && absl::IsFailedPrecondition(*changed));
    if (next.has_value()) {
      EXPECT_EQ(*next, absl::OkStatus());
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the abandoned streams' handlers end");
}

TEST_F(StreamWindowTest, AStreamThatTheClientReadsGoesOnBesideManyThatItDoesNot) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Chat before = stub_->Echo({.deadline = kPatience});
    VERBENA_CO_RETURN_IF_ERROR(co_await Echo(before, 50, 1000));
    testing::CountRequest request;
    request.set_count(1000000);
    request.set_bytes(4000);
    std::vector<ClientReader<Item>> unread;
    for (int i = 0; i < kUnread; ++i) {
      unread.push_back(stub_->Count(request));
      EXPECT_TRUE((co_await unread.back().Read()).has_value());
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await Settle());
    VERBENA_CO_RETURN_IF_ERROR(co_await Echo(before, 200, 1000));
    request.set_count(1000);
    request.set_bytes(1000);
    ClientReader<Item> now = stub_->Count(request, {.deadline = kPatience});
    co_return co_await ReadAll(now, 1000, 1000);
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the abandoned streams' handlers end");
}

}  // namespace
}  // namespace verbena
