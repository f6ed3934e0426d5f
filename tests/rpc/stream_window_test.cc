// Streams that nobody reads, however many, do not stop the other streams of their link.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/stream_service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/task_scope.h"

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
