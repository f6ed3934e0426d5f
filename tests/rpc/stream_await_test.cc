// A cancelled await of a stream leaves the stream as it is: also while it connects, and while
// another await of the same kind begins. A stream may be destroyed before its awaits.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/stream_service.h"
#include "tests/support/watched.h"
#include "tests/transport/connect/scripted_bootstrap.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/policy.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {
namespace {

class StreamAwaitTest : public StreamTest {
 protected:
  using Chat = ClientReaderWriter<Item, Item>;

  ~StreamAwaitTest() override {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }

  void StartGated() {
    server_runtime_ = StartRuntime({.use_bootstrap = &gate_});
    ServeWith(service_, {.address = "server"});
    StartClient(server_->address(), {.use_bootstrap = &gate_});
  }

  static Task<void> In(CancelScope& scope, Task<void> task) { co_await std::move(task).In(&scope); }
  static Task<void> ReadInto(Chat& stream, std::optional<Item>& item, bool& ended) {
    item = co_await stream.Read();
    ended = true;
  }
  static Task<void> EndWrites(Chat& stream, absl::Status& status) {
    status = co_await stream.WritesDone();
  }
  static Task<void> Write(Chat& stream, absl::Status& status) {
    status = co_await stream.Write(ItemOf(1));
  }
  static Task<void> Finish(Chat& stream, absl::Status& status) {
    status = co_await stream.Finish();
  }

  // Lets turns pass, another number of them in each round. In some rounds the last turn brings the
  // message that a Read waits for, and the caller goes on before that Read does.
  Task<absl::Status> PassTurns(uint64_t round) {
    if (round % 2 == 1) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    const uint64_t turns = round / 2 % (round % 2 == 1 ? 4 : 64);
    for (uint64_t n = 0; n < turns; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    co_return absl::OkStatus();
  }

  LocalNetwork network_;
  std::atomic<bool> refuses_{false};
  Watched<bool> open_;
  // Connects once it is open.
  ScriptedBootstrap gate_{network_, [this](const std::string&) -> Task<absl::Status> {
                            if (refuses_) co_return absl::UnavailableError("not yet");
                            co_return co_await open_.Until(true);
                          }};
};

TEST_F(StreamAwaitTest, ACancelledAwaitLeavesAStreamThatConnects) {
  StartGated();
  auto run = [&]() -> Task<absl::Status> {
    Chat stream = stub_->Echo();
    CancelScope scope;
    TaskScope tasks(co_await CurrentContext());
    std::optional<Item> item;
    bool ended = false;
    absl::Status written, done;
    tasks.Spawn(In(scope, ReadInto(stream, item, ended)));
    tasks.Spawn(In(scope, Write(stream, written)));
    tasks.Spawn(In(scope, EndWrites(stream, done)));
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    EXPECT_FALSE(ended);
    scope.Request(absl::StatusCode::kCancelled);
    co_await tasks.Join();
    EXPECT_FALSE(item.has_value());
    EXPECT_TRUE(absl::IsCancelled(written)) << written;
    EXPECT_TRUE(absl::IsCancelled(done)) << done;
    open_ = true;
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(7)));
    item = co_await stream.Read();
    EXPECT_TRUE(item.has_value() && item->number() == 7);
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.WritesDone());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(service_.read_, 1u);
}

// They take turns at looking for a link.
TEST_F(StreamAwaitTest, AnAwaitThatIsCancelledLeavesTheSearchForALinkToTheNext) {
  StartGated();
  auto run = [&]() -> Task<absl::Status> {
    Chat stream = stub_->Echo();
    CancelScope scope;
    TaskScope tasks(co_await CurrentContext());
    std::optional<Item> item;
    bool ended = false;
    absl::Status written;
    tasks.Spawn(In(scope, ReadInto(stream, item, ended)));
    tasks.Spawn(Write(stream, written));
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    scope.Request(absl::StatusCode::kCancelled);
    open_ = true;
    co_await tasks.Join();
    EXPECT_TRUE(ended);
    EXPECT_FALSE(item.has_value());
    EXPECT_EQ(written, absl::OkStatus());
    item = co_await stream.Read();
    EXPECT_TRUE(item.has_value() && item->number() == 1);
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.WritesDone());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamAwaitTest, AReadThatPausesBeforeAnotherAttemptGoesOnOnceTheStreamHasBegun) {
  StartGated();
  refuses_ = true;
  const RetryPolicy patient{.initial_backoff = std::chrono::hours(1),
                            .max_backoff = std::chrono::hours(1)};
  stub_.reset();
  channel_ = std::make_unique<Channel>(
      *client_runtime_, server_->address(),
      ChannelOptions{.service_config = {.methods = {{.retry = patient}}}});
  stub_ = std::make_unique<testing::Streaming::Stub>(*channel_);
  auto run = [&]() -> Task<absl::Status> {
    Chat stream = stub_->Echo();
    TaskScope tasks(co_await CurrentContext());
    std::optional<Item> item;
    bool ended = false;
    tasks.Spawn(ReadInto(stream, item, ended));
    const auto refused = [this] {
      const absl::StatusOr<std::vector<ChannelServer>> servers = channel_->Servers();
      return servers.ok() && !servers->empty() && !servers->front().last_error.ok();
    };
    while (!refused()) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    EXPECT_FALSE(ended);
    refuses_ = false;
    open_ = true;
    // Somebody else has the channel connect, so that the next await begins the stream at once.
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitLink());
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(3)));
    co_await tasks.Join();
    EXPECT_TRUE(item.has_value() && item->number() == 3);
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.WritesDone());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamAwaitTest, ACancelledFinishEndsAStreamThatConnects) {
  StartGated();
  auto run = [&]() -> Task<absl::Status> {
    Chat stream = stub_->Echo();
    CancelScope scope;
    TaskScope tasks(co_await CurrentContext());
    absl::Status finished;
    auto finish = [&]() -> Task<void> { finished = co_await stream.Finish(); };
    tasks.Spawn(In(scope, finish()));
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    scope.Request(absl::StatusCode::kCancelled);
    co_await tasks.Join();
    EXPECT_TRUE(absl::IsCancelled(finished)) << finished;
    EXPECT_EQ(OutcomeOf(finished), Outcome::kNotExecuted);
    open_ = true;
    EXPECT_TRUE(absl::IsCancelled(co_await stream.Write(ItemOf(7))));
    co_return co_await SayOnce();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(service_.read_, 0u);
}

TEST_F(StreamAwaitTest, AnotherReadMayBeginBeforeACancelledOneHasResumed) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Chat stream = stub_->Echo();
    for (uint64_t i = 1; i < 20; ++i) {
      CancelScope scope;
      TaskScope tasks(co_await CurrentContext());
      std::optional<Item> first;
      bool first_ended = false;
      tasks.Spawn(In(scope, ReadInto(stream, first, first_ended)));
      VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      absl::Status written;
      tasks.Spawn(Write(stream, written));
      scope.Request(absl::StatusCode::kCancelled);
      EXPECT_FALSE(first_ended);
      const std::optional<Item> second = co_await stream.Read();
      EXPECT_TRUE(second.has_value());
      co_await tasks.Join();
      EXPECT_FALSE(first.has_value());
    }
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamAwaitTest, AnotherReadMayBeginBeforeACancelledOneHasTakenItsMessage) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    Chat stream = stub_->Echo();
    for (uint64_t i = 1; i <= 300; ++i) {
      CancelScope scope;
      std::optional<Item> first, second;
      bool first_ended = false;
      TaskScope tasks(co_await CurrentContext());
      tasks.Spawn(In(scope, ReadInto(stream, first, first_ended)));
      VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i)));
      VERBENA_CO_RETURN_IF_ERROR(co_await PassTurns(i));
      scope.Request();
      if (!first_ended) second = co_await stream.Read();
      co_await tasks.Join();
      EXPECT_NE(first.has_value(), second.has_value()) << i;
      EXPECT_EQ((first.has_value() ? first : second).value_or(Item()).number(), i);
    }
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamAwaitTest, AFinishDropsTheMessageOfAReadThatWasDestroyed) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    for (uint64_t i = 1; i <= 300; ++i) {
      Chat stream = stub_->Echo();
      std::optional<Item> item;
      bool ended = false;
      {
        TaskScope tasks(co_await CurrentContext());
        tasks.Spawn(ReadInto(stream, item, ended));
        VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
        VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(i)));
        VERBENA_CO_RETURN_IF_ERROR(co_await PassTurns(i));
      }
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
      EXPECT_FALSE((co_await stream.Read()).has_value()) << i;
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamAwaitTest, AStreamMayBeDestroyedWhileItsFirstAwaitsConnect) {
  StartGated();
  auto run = [&]() -> Task<absl::Status> {
    auto stream = std::make_unique<Chat>(stub_->Echo());
    std::optional<Item> item;
    bool ended = false;
    absl::Status written;
    TaskScope tasks(co_await CurrentContext());
    tasks.Spawn(ReadInto(*stream, item, ended));
    tasks.Spawn(Write(*stream, written));
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    stream.reset();
    EXPECT_FALSE(ended);
    open_ = true;
    co_await tasks.Join();
    EXPECT_FALSE(item.has_value());
    EXPECT_TRUE(absl::IsCancelled(written)) << written;
    co_return co_await SayOnce();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(service_.read_, 0u);
}

TEST_F(StreamAwaitTest, AStreamThatEndsWakesWhoConnects) {
  StartGated();
  auto run = [&](bool by_owner) -> Task<absl::Status> {
    auto stream = std::make_unique<Chat>(stub_->Echo());
    std::optional<Item> item;
    bool ended = false;
    CancelScope scope;
    absl::Status written, finished;
    TaskScope tasks(co_await CurrentContext());
    tasks.Spawn(ReadInto(*stream, item, ended));
    tasks.Spawn(Write(*stream, written));
    tasks.Spawn(In(scope, Finish(*stream, finished)));
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    EXPECT_EQ(tasks.size(), 3u);
    if (by_owner) {
      stream.reset();
    } else {
      scope.Request();
    }
    for (int n = 0; n < 100; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    EXPECT_EQ(tasks.size(), 0u) << "though the link is not there yet";
    if (tasks.size() > 0) open_ = true;
    co_await tasks.Join();
    EXPECT_FALSE(item.has_value());
    EXPECT_TRUE(absl::IsCancelled(written)) << written;
    EXPECT_TRUE(absl::IsCancelled(finished)) << finished;
    EXPECT_EQ(OutcomeOf(finished), Outcome::kNotExecuted);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run(true)), absl::OkStatus());
  EXPECT_EQ(Run(run(false)), absl::OkStatus());
  open_ = true;
  EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
}

TEST_F(StreamAwaitTest, AStreamMayBeDestroyedBeforeItsCancelledReadResumes) {
  Start();
  auto run = [&]() -> Task<absl::Status> {
    auto stream = std::make_unique<Chat>(stub_->Echo());
    VERBENA_CO_RETURN_IF_ERROR(co_await stream->Write(ItemOf(1)));
    EXPECT_TRUE((co_await stream->Read()).has_value());
    CancelScope scope;
    std::optional<Item> item;
    bool ended = false;
    TaskScope tasks(co_await CurrentContext());
    tasks.Spawn(In(scope, ReadInto(*stream, item, ended)));
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    scope.Request();
    stream.reset();
    EXPECT_FALSE(ended);
    co_await tasks.Join();
    EXPECT_TRUE(ended);
    EXPECT_FALSE(item.has_value());
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// The await of a Read or Write lives until the end of the full expression.
TEST_F(StreamAwaitTest, AStreamMayBeDestroyedWithinTheExpressionThatAwaitsIt) {
  Start();
  std::unique_ptr<Chat> stream;
  auto destroy = [&](bool result) -> Task<bool> {
    stream.reset();
    co_return result;
  };
  auto run = [&]() -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
    Item item;
    // A Read that waits, and one whose message has come.
    for (int calls : {0, 10}) {
      stream = std::make_unique<Chat>(stub_->Echo());
      VERBENA_CO_RETURN_IF_ERROR(co_await stream->Write(ItemOf(1)));
      for (int n = 0; n < calls; ++n) VERBENA_CO_RETURN_IF_ERROR(co_await SayOnce());
      EXPECT_TRUE(co_await destroy(co_await stream->Read(item)));
      EXPECT_EQ(item.number(), 1u);
    }
    stream = std::make_unique<Chat>(stub_->Echo());
    const Item written = ItemOf(2);
    EXPECT_TRUE(co_await destroy((co_await stream->Write(written)).ok()));
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return service_.running == 0; }, "the handlers end");
}

}  // namespace
}  // namespace verbena
