// A Read whose payload finds no memory waits for some, while its writer waits for the window. The
// wait ends with the Read, with its stream and after a limit, and loses no message.

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/abandonable.h"
#include "tests/rpc/first_device.h"
#include "tests/rpc/stream_payload_service.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {
namespace {

using EchoStream = ClientReaderWriter<PayloadItem, PayloadItem>;

// The memory of a client, all of which the test takes.
class ShortStreamMemoryTest : public StreamPayloadTest {
 protected:
  // `clock` is the client's; null: the machine's.
  void StartShort(Clock* clock = nullptr) {
    RuntimeOptions client{.clock = clock};
    if (clock != nullptr) {
      client.limits.ping_interval = std::chrono::hours(1);
      client.limits.idle_timeout = Duration::zero();
    }
    client.limits.memory.landing_bytes = 16 << 20;
    client.limits.max_payload_bytes = 1 << 20;
    Start({}, {}, std::move(client));
    EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
  }

  internal::BufferPool& landing() { return internal::PayloadMemoryOf(*client_runtime_)->landing(); }
  Task<absl::Status> TakeAll() {
    for (size_t bytes : {size_t{1} << 20, size_t{4096}}) {
      for (;;) {
        absl::StatusOr<Buffer> buffer = landing().TryAllocate(bytes);
        if (buffer.ok()) {
          taken_.push_back(*std::move(buffer));
        } else if (landing().stats().growing_bytes > 0) {
          VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
        } else {
          break;
        }
      }
    }
    co_return absl::OkStatus();
  }
  // Like TakeAll(), also while the client's clock stands.
  Task<absl::Status> AwaitWaiter() {
    while (landing().stats().waiting == 0) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    co_return absl::OkStatus();
  }

  std::vector<Buffer> taken_;
};

TEST_F(ShortStreamMemoryTest, AReadWaitsForMemoryWhileItsWriterWaitsForTheWindow) {
  StartShort();
  auto run = [&]() -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await TakeAll());
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(100, 10000));
    PayloadItem item;
    auto read = [&]() -> Task<absl::Status> {
      for (uint64_t i = 0; i < 100; ++i) {
        if (!co_await reader.Read(item)) co_return absl::DataLossError("no message");
        EXPECT_EQ(item->number(), i);
        EXPECT_TRUE(HasPayloadOf(item.payload.view(), i));
      }
      co_return absl::OkStatus();
    };
    auto free = [&]() -> Task<absl::Status> {
      VERBENA_CO_RETURN_IF_ERROR(co_await AwaitWaiter());
      // 256 KiB of the stream at most are here.
      while (service_.written < 20) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
      for (int n = 0; n < 20; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      EXPECT_LT(service_.written, 30u);
      taken_.clear();
      co_return absl::OkStatus();
    };
    auto [readen, freed] = co_await WhenAll(read(), free());
    VERBENA_CO_RETURN_IF_ERROR(freed);
    VERBENA_CO_RETURN_IF_ERROR(readen);
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

TEST_F(ShortStreamMemoryTest, AReadThatIsCancelledOrDestroyedInItsWaitLosesNoMessage) {
  StartShort();
  auto run = [&]() -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await TakeAll());
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(3, 10000));
    PayloadItem item;
    for (int i = 0; i < 3; ++i) {
      auto first = co_await WhenAny(reader.Read(item), AwaitWaiter());
      EXPECT_EQ(first.index(), 1u);
      auto read = [&]() -> Task<absl::Status> {
        (void)co_await reader.Read(item);
        co_return absl::OkStatus();
      };
      const Abandonable abandoned(client_runtime_->executor(0), read());
      VERBENA_CO_RETURN_IF_ERROR(co_await AwaitWaiter());
      EXPECT_FALSE(abandoned.ended());
    }
    taken_.clear();
    for (uint64_t i = 0; i < 3; ++i) {
      if (!co_await reader.Read(item)) co_return absl::DataLossError("no message");
      EXPECT_EQ(item->number(), i);
      EXPECT_TRUE(HasPayloadOf(item.payload.view(), i));
    }
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

TEST_F(ShortStreamMemoryTest, AStreamWhoseReadGetsNoMemoryInTimeFails) {
  testing::FakeClock standing;
  StartShort(&standing);
  constexpr std::chrono::seconds kDeadline(10);
  auto run = [&]() -> Task<absl::Status> {
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(100, 10000), {.deadline = kDeadline});
    EXPECT_FALSE((co_await reader.Read()).has_value());
    taken_.clear();
    EXPECT_FALSE((co_await reader.Read()).has_value());
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(TakeAll()), absl::OkStatus());
  JoinHandle<absl::Status> ended = client_runtime_->Spawn(run());
  EXPECT_EQ(Run(AwaitWaiter()), absl::OkStatus());
  // The wait takes seven eighths of the time that is left.
  standing.Advance(*client_runtime_, Duration(kDeadline) * 7 / 8);
  const absl::Status status = ended.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  standing.Run();
  ExpectNothingHeld();
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
}

TEST_F(ShortStreamMemoryTest, AStreamThatEndsOrLosesItsLinkEndsTheWait) {
  StartShort();
  auto run = [&](bool by_owner) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await TakeAll());
    auto reader = std::make_unique<ClientReader<PayloadItem>>(stub_->Send(CountOf(100, 10000)));
    auto read = [&]() -> Task<absl::Status> {
      EXPECT_FALSE((co_await reader->Read()).has_value());
      co_return absl::OkStatus();
    };
    auto end = [&]() -> Task<absl::Status> {
      VERBENA_CO_RETURN_IF_ERROR(co_await AwaitWaiter());
      if (by_owner) {
        reader.reset();
      } else {
        LoseLink();
      }
      co_return absl::OkStatus();
    };
    auto [readen, ended] = co_await WhenAll(read(), end());
    VERBENA_CO_RETURN_IF_ERROR(ended);
    EXPECT_FALSE(taken_.empty());
    taken_.clear();
    co_return readen;
  };
  EXPECT_EQ(Run(run(true)), absl::OkStatus());
  ExpectNothingHeld();
  EXPECT_EQ(Run(run(false)), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the handler ends");
}

TEST_F(ShortStreamMemoryTest, AnotherReadMayBeginBeforeACancelledOneLeavesItsWait) {
  StartShort();
  auto run = [&]() -> Task<absl::Status> {
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(3, 10000));
    for (uint64_t i = 0; i < 3; ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await TakeAll());
      CancelScope scope;
      PayloadItem first, second;
      bool first_read = true;
      auto read = [&]() -> Task<void> { first_read = co_await reader.Read(first); };
      auto in_scope = [&]() -> Task<void> { co_await read().In(&scope); };
      TaskScope tasks(co_await CurrentContext());
      tasks.Spawn(in_scope());
      VERBENA_CO_RETURN_IF_ERROR(co_await AwaitWaiter());
      scope.Request();
      taken_.clear();
      if (!co_await reader.Read(second)) co_return absl::DataLossError("no message");
      EXPECT_EQ(second->number(), i);
      EXPECT_TRUE(HasPayloadOf(second.payload.view(), i));
      co_await tasks.Join();
      EXPECT_FALSE(first_read);
    }
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

// Some of the streams end in the turn that brings the message, before its Read resumes.
TEST_F(ShortStreamMemoryTest, AReadWhoseStreamHasFailedAwaitsNoMemory) {
  StartShort();
  auto run = [&]() -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await TakeAll());
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await Filled(500, 1));
    for (uint64_t i = 0; i < 300; ++i) {
      auto stream = std::make_unique<EchoStream>(stub_->Echo());
      PayloadItem item;
      auto read = [&]() -> Task<void> { EXPECT_FALSE(co_await stream->Read(item)); };
      TaskScope tasks(co_await CurrentContext());
      tasks.Spawn(read());
      VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
      VERBENA_CO_RETURN_IF_ERROR(co_await stream->Write(Numbered(i), payload.view()));
      if (i % 2 == 1) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      const uint64_t turns = i / 2 % (i % 2 == 1 ? 4 : 64);
      for (uint64_t n = 0; n < turns; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
      stream.reset();
      for (int n = 0; n < 10; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
      EXPECT_EQ(landing().stats().waiting, 0u) << i;
      if (HasFailure()) taken_.clear();
      co_await tasks.Join();
      if (HasFailure()) break;
    }
    taken_.clear();
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
}

TEST_F(ShortStreamMemoryTest, AFinishEndsTheWaitOfTheReadBesideIt) {
  StartShort();
  auto run = [&]() -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await TakeAll());
    ClientReader<PayloadItem> reader = stub_->Send(CountOf(100, 10000));
    auto read = [&]() -> Task<bool> { co_return (co_await reader.Read()).has_value(); };
    auto finish = [&]() -> Task<absl::Status> {
      VERBENA_CO_RETURN_IF_ERROR(co_await AwaitWaiter());
      absl::Status finished = co_await reader.Finish();
      EXPECT_EQ(landing().stats().waiting, 0u);
      taken_.clear();
      co_return finished;
    };
    auto [has_message, finished] = co_await WhenAll(read(), finish());
    EXPECT_FALSE(has_message);
    co_return finished;
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(service_.written, 100u);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace verbena
