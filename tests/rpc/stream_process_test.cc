// When a server's process is killed, the streams that are open end, and Finish() tells what is
// known of each.

#include <memory>
#include <optional>
#include <vector>

#include "tests/rpc/server_process.h"
#include "tests/rpc/stream_service.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

class StreamProcessTest : public StreamTest {
 protected:
  using Chat = ClientReaderWriter<Item, Item>;

  StreamProcessTest() : process_(std::make_unique<ServerProcess<StreamingService>>("127.0.0.1:0")) {
    StartClient(process_->address());
  }

  static Task<void> ReadToTheEnd(Chat& stream, absl::Status& ended) {
    while ((co_await stream.Read()).has_value()) {
    }
    ended = co_await stream.Finish();
  }
  static Task<void> WriteToTheEnd(Chat& stream, absl::Status& ended) {
    while ((co_await stream.Write(ItemOf(1, 4000))).ok()) {
    }
    ended = co_await stream.Finish();
  }

  std::unique_ptr<ServerProcess<StreamingService>> process_;
};

TEST_F(StreamProcessTest, AKilledServerEndsItsStreamsAsMaybeExecuted) {
  constexpr int kStreams = 50;
  auto run = [&]() -> Task<absl::Status> {
    std::vector<Chat> streams;
    std::vector<absl::Status> ended(2 * kStreams);
    TaskScope tasks(co_await CurrentContext());
    for (int i = 0; i < kStreams; ++i) {
      streams.push_back(stub_->Echo());
      VERBENA_CO_RETURN_IF_ERROR(co_await streams.back().Write(ItemOf(i)));
      EXPECT_TRUE((co_await streams.back().Read()).has_value());
      streams.push_back(stub_->Ignore());
    }
    Chat over = stub_->Echo();
    VERBENA_CO_RETURN_IF_ERROR(co_await over.WritesDone());
    EXPECT_EQ(co_await over.Finish(), absl::OkStatus());
    // Half of them wait for a message, half for a window that nobody opens.
    for (int i = 0; i < 2 * kStreams; ++i) {
      tasks.Spawn(i % 2 == 0 ? ReadToTheEnd(streams[i], ended[i])
                             : WriteToTheEnd(streams[i], ended[i]));
    }
    for (int i = 0; i < 100; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    process_->Kill();
    co_await tasks.Join();
    for (const absl::Status& status : ended) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted) << status;
    }
    // The next stream finds nobody.
    Chat late = stub_->Echo();
    EXPECT_FALSE((co_await late.Read()).has_value());
    const absl::Status none = co_await late.Finish();
    EXPECT_TRUE(absl::IsUnavailable(none)) << none;
    EXPECT_EQ(OutcomeOf(none), Outcome::kNotExecuted) << none;
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamProcessTest, AStreamThatHasEndedStaysReadableWhenItsServerIsKilled) {
  auto run = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(100);
    request.set_bytes(1000);
    ClientReader<Item> reader = stub_->Count(request);
    EXPECT_TRUE((co_await reader.Read()).has_value());
    // The rest, and the response behind it, come before these answers.
    for (int i = 0; i < 100; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    process_->Kill();
    EXPECT_FALSE((co_await stub_->Say(ItemOf(1))).ok());
    for (uint64_t i = 1; i < 100; ++i) {
      const std::optional<Item> item = co_await reader.Read();
      if (!item.has_value()) co_return co_await reader.Finish();
      EXPECT_EQ(item->number(), i);
    }
    EXPECT_FALSE((co_await reader.Read()).has_value());
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

}  // namespace
}  // namespace verbena
