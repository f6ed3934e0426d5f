// Misuse of calls and streams that the program could have seen aborts the process, in every build,
// and the message says what was wrong.

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/channel.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena::internal {
namespace call_misuse_test {

using Item = testing::StreamItem;

// Reads twice at once.
class HastyReader final : public testing::Streaming::Service {
 public:
  Task<absl::Status> Ignore(ServerContext&, ServerReaderWriter<Item, Item>& stream) override {
    std::vector<Task<void>> reads;
    reads.push_back(ReadOnce(stream));
    reads.push_back(ReadOnce(stream));
    co_await WhenAll(std::move(reads));
    co_return absl::OkStatus();
  }

 private:
  static Task<void> ReadOnce(ServerReaderWriter<Item, Item>& stream) {
    (void)co_await stream.Read();
  }
};

class StreamMisuseDeathTest : public StreamTest {
 protected:
  using Both = ClientReaderWriter<Item, Item>;

  StreamMisuseDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static Task<void> Read(Both& stream) {
    Item item;
    (void)co_await stream.TryRead(item);
  }
  // Waits for the window.
  static Task<void> Write(Both& stream) {
    const Item large = ItemOf(0, 1 << 20);
    (void)co_await stream.Write(large);
  }
  static Task<void> Finish(Both& stream) { (void)co_await stream.Finish(); }

  // Awaits the same twice at once, on a stream whose handler neither reads nor ends.
  void Twice(Task<void> (*begin)(Both&)) {
    const auto run = [&]() -> Task<absl::Status> {
      Both stream = stub_->Ignore();
      std::vector<Task<void>> both;
      both.push_back(begin(stream));
      both.push_back(begin(stream));
      co_await WhenAll(std::move(both));
      co_return absl::OkStatus();
    };
    (void)Run(run());
  }
};

TEST_F(StreamMisuseDeathTest, TwoReadsAtOnceAbort) {
  Start();
  EXPECT_DEATH(Twice(Read), "two Reads of one stream at once");
}

TEST_F(StreamMisuseDeathTest, TwoWritesAtOnceAbort) {
  Start();
  EXPECT_DEATH(Twice(Write), "two Writes of one stream of .*Ignore at once");
}

TEST_F(StreamMisuseDeathTest, TwoFinishAtOnceAbort) {
  Start();
  EXPECT_DEATH(Twice(Finish), "two Finish of one stream at once");
}

TEST_F(StreamMisuseDeathTest, TwoReadsOfAHandlerAtOnceAbort) {
  HastyReader hasty;
  server_runtime_ = StartRuntime();
  ServeWith(hasty);
  StartClient(server_->address());
  const auto run = [&]() -> Task<absl::Status> {
    Both stream = stub_->Ignore();
    Item item;
    co_return (co_await stream.TryRead(item)).status();
  };
  EXPECT_DEATH((void)Run(run()), "two Reads of one stream at once");
  StopAll();
}

TEST_F(StreamMisuseDeathTest, ACallThatIsAwaitedTwiceAborts) {
  Start();
  const auto run = [&]() -> Task<absl::Status> {
    auto call = stub_->Say(ItemOf(1));
    (void)co_await std::move(call);
    // NOLINTNEXTLINE(bugprone-use-after-move): what the check is for
    co_return (co_await std::move(call)).status();
  };
  EXPECT_DEATH((void)Run(run()), "Say: a call was awaited twice");
}

// Writes two parts of a payload at once.
class HastyWriter final : public testing::Payloads::Service {
 public:
  Task<absl::Status> Get(ServerContext& context, const testing::GetRequest& request,
                         testing::GetReply&) override {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer part, co_await context.AllocateBuffer(request.bytes()));
    std::vector<Task<void>> writes;
    writes.push_back(WriteOnce(context, part.view()));
    writes.push_back(WriteOnce(context, part.view()));
    co_await WhenAll(std::move(writes));
    co_return absl::OkStatus();
  }

 private:
  static Task<void> WriteOnce(ServerContext& context, BufferView part) {
    (void)co_await context.WriteResponsePayload(part);
  }
};

using PayloadMisuseDeathTest = PayloadFixture;

TEST_F(PayloadMisuseDeathTest, TwoPartsOfAResponsePayloadAtOnceAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  HastyWriter hasty;
  server_runtime_ = StartRuntime();
  ServeWith(hasty);
  StartClient();
  const auto run = [this]() -> Task<absl::Status> {
    testing::GetRequest request;
    request.set_bytes(1 << 20);
    co_return (co_await stub_->Get(request, {.max_response_payload = 4 << 20})).status();
  };
  EXPECT_DEATH((void)Run(run()), "WriteResponsePayload\\(\\) is awaited before it is called again");
  StopBoth();
}

}  // namespace call_misuse_test
}  // namespace verbena::internal
