// A channel's interceptors run around a stream in the order of their list: they read and change its
// context, see how it ends, and may refuse or answer it. They end with it, however it ends.

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/rpc/stream_context_fixture.h"
#include "tests/support/watched.h"
#include "verbena/rpc/task.h"

namespace verbena::internal {
namespace {

using namespace std::chrono_literals;
using testing::StreamItem;

TEST_F(StreamContextTest, InterceptorsRunAroundStreamsInTheOrderOfTheList) {
  std::string order;
  const auto named = [&order](std::string name) -> ScriptedInterceptor::Function {
    return [&order, name](ClientCallView&, ClientNext next) -> Task<absl::Status> {
      order += name + "> ";
      absl::Status status = co_await next();
      order += "<" + name + (status.ok() ? " " : "! ");
      co_return status;
    };
  };
  Start({named("a"), named("b")});
  for (int i = 0; i < 2; ++i) {  // over a link that is made, and one that is there
    EXPECT_EQ(Run(Count({})), absl::OkStatus());
    EXPECT_EQ(Run(Sum({})), absl::OkStatus());
    EXPECT_EQ(Run(Echo({})), absl::OkStatus());
    EXPECT_EQ(order, "a> b> <b <a a> b> <b <a a> b> <b <a ");
    order.clear();
  }
  EXPECT_EQ(Run(Count({}, 3, 0, absl::StatusCode::kAborted)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(order, "a> b> <b! <a! ");
}

TEST_F(StreamContextTest, InterceptorsReadAndChangeAStreamsContext) {
  const TraceContext root = TraceContext::Root(true);
  Start({[&](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    EXPECT_EQ(call.metadata.Get("tenant"), "blue");
    EXPECT_EQ(call.target(), server_->address());
    EXPECT_EQ(static_cast<const testing::CountRequest&>(call.request()).filler().size(), 9u);
    EXPECT_TRUE(call.deadline().is_set());
    EXPECT_EQ(call.trace.value_or(TraceContext{}).trace_id, root.trace_id);
    const TraceContext* parent = (co_await CurrentContext()).trace();
    EXPECT_TRUE(parent != nullptr && *parent == root) << "the span that the stream is made in";
    call.metadata.Remove("tenant");
    call.metadata.Add("token", "secret");
    call.priority = Priority::kBackground;
    absl::Status status = co_await next();
    EXPECT_EQ(call.trailing_metadata().Get("rows"), "7") << "though nobody has a CallInfo";
    co_return status;
  }});
  service_.before = [](ServerContext& context) -> Task<absl::Status> {
    co_return context.AddTrailingMetadata("rows", "7");
  };
  EXPECT_EQ(Run(WithTrace(Count({.deadline = 1h, .metadata = {{"tenant", "blue"}}}, 3, 9), root)),
            absl::OkStatus());
  EXPECT_EQ(Seen().metadata.size(), 1u);
  EXPECT_EQ(Seen().metadata.Get("token"), "secret");
  EXPECT_EQ(Seen().priority, Priority::kBackground);
  EXPECT_EQ(Seen().trace.value_or(TraceContext{}).trace_id, root.trace_id);
}

TEST_F(StreamContextTest, MetadataThatAnInterceptorAddsIsChecked) {
  size_t bytes = 0;
  Start({[&](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    bytes == 0 ? call.metadata.Add("Token", "x") : call.metadata.Add("t", std::string(bytes, 'x'));
    absl::Status status = co_await next();
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    co_return status;
  }});
  EXPECT_EQ(Run(Echo({})).code(), absl::StatusCode::kInvalidArgument);
  bytes = 9000;
  EXPECT_EQ(Run(Echo({})).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(StreamContextTest, AStreamThatAnInterceptorRefusesIsNotExecuted) {
  Outcome seen = Outcome::kMaybeExecuted;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
           absl::Status status = co_await next();
           seen = OutcomeOf(status);
           co_return status;
         },
         [](ClientCallView&, ClientNext) -> Task<absl::Status> {
           co_return absl::UnavailableError("injected");
         }});
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo();
    EXPECT_FALSE((co_await stream.Read()).has_value());
    EXPECT_EQ((co_await stream.Write(ItemOf(1))).code(), absl::StatusCode::kUnavailable);
    co_return co_await stream.Finish();
  };
  for (const absl::Status& status : {Run(run()), Run(Count({})), Run(Sum({}))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_EQ(seen, Outcome::kNotExecuted);
  }
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(StreamContextTest, AnInterceptorMayAnswerAStream) {
  Start({[](ClientCallView& call, ClientNext) -> Task<absl::Status> {
    if (call.method().streams == Streams::kClient) {
      static_cast<testing::Summary&>(call.reply()).set_count(3);
    }
    co_return absl::OkStatus();
  }});
  EXPECT_EQ(Run(Sum({})), absl::OkStatus());
  EXPECT_EQ(Run(Count({}, 0)), absl::OkStatus());
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(StreamContextTest, AnInterceptorSeesTheReplyAndMayTurnTheStatusIntoAnother) {
  Start({[](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    absl::Status status = co_await next();
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(static_cast<testing::Summary&>(call.reply()).count(), 3u);
    co_return absl::AbortedError("seen");
  }});
  const absl::Status status = Run(Sum({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
}

TEST_F(StreamContextTest, OneThatThrowsEndsItsStreamAlone) {
  Start({[](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
    if (call.metadata.empty()) throw std::runtime_error("out of cheese");
    co_return co_await next();
  }});
  const absl::Status status = Run(Echo({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(Run(Echo({.metadata = {{"a", "b"}}})), absl::OkStatus());
}

TEST_F(StreamContextTest, ADeadlineEndsTheWaitsOfInterceptors) {
  int waited = 0;
  Start({[&](ClientCallView&, ClientNext) -> Task<absl::Status> {
    absl::Status slept = co_await SleepUntil(kNever);
    ++waited;
    co_return slept;
  }});
  EXPECT_EQ(Run(Echo({.deadline = 20ms})).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Run(Sum({.deadline = 20ms})).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waited, 2);
  EXPECT_EQ(server_->stats().calls, 0u);
}

// Both go on once the interceptors have begun the stream.
TEST_F(StreamContextTest, AReadAndAWriteWaitForTheInterceptors) {
  Event go;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await go.Wait());
    co_return co_await next();
  }});
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo();
    const auto open = [&]() -> Task<absl::Status> {
      EXPECT_EQ(server_->stats().calls, 0u);
      go.Set();
      co_return absl::OkStatus();
    };
    auto [item, written, opened] =
        co_await WhenAll(stream.Read().AsTask(), stream.Write(ItemOf(5)).AsTask(), open());
    EXPECT_EQ(written, absl::OkStatus());
    EXPECT_EQ(item.value_or(StreamItem()).number(), 5u);
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_F(StreamContextTest, ACancelledFinishEndsTheInterceptorsFirst) {
  bool early = false;
  std::vector<absl::StatusCode> seen;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    absl::Status status = early ? co_await SleepUntil(kNever) : co_await next();
    seen.push_back(status.code());
    (void)co_await Yield();
    seen.push_back(absl::StatusCode::kOk);
    co_return status;
  }});
  const auto run = [&]() -> Task<absl::Status> {
    CancelScope scope;
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Ignore();
    const auto finish = [&]() -> Task<absl::Status> { co_return co_await stream.Finish(); };
    const auto cancel = [&]() -> Task<absl::Status> {
      if (!early) (void)co_await service_.waiting.Until(1);
      scope.Request();
      co_return absl::OkStatus();
    };
    const auto both = [&]() -> Task<absl::Status> { co_return co_await finish().In(&scope); };
    auto [finished, cancelled] = co_await WhenAll(both(), cancel());
    EXPECT_EQ(seen.size(), 2u) << "they have ended";
    co_return finished;
  };
  for (const bool first : {false, true}) {
    early = first;
    seen.clear();
    EXPECT_EQ(Run(run()).code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(seen, (std::vector{absl::StatusCode::kCancelled, absl::StatusCode::kOk}));
  }
  Eventually([&] { return service_.waiting == 0; }, "the handler has ended");
}

// Nor if an interceptor goes on without the scope of its Task.
TEST_F(StreamContextTest, AStreamWhoseFinishWasCancelledDoesNotBegin) {
  Watched<int> begun;
  Event may_begin;
  absl::Status next_status;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    ++begun;
    const auto wait = [&]() -> Task<absl::Status> { co_return co_await may_begin.Wait(); };
    (void)co_await wait().In(nullptr);
    next_status = co_await next().In(nullptr);
    co_return next_status;
  }});
  const auto run = [&]() -> Task<absl::Status> {
    CancelScope scope;
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo();
    const auto finish = [&]() -> Task<absl::Status> { co_return co_await stream.Finish(); };
    const auto cancel = [&]() -> Task<absl::Status> {
      (void)co_await begun.Until(1);
      scope.Request();
      (void)co_await Yield();
      may_begin.Set();
      co_return absl::OkStatus();
    };
    const auto both = [&]() -> Task<absl::Status> { co_return co_await finish().In(&scope); };
    auto [finished, cancelled] = co_await WhenAll(both(), cancel());
    co_return finished;
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(next_status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server_->stats().calls, 0u);
}

// The Task of the interceptors is destroyed, as that of a unary call is.
TEST_F(StreamContextTest, AStreamThatIsDestroyedTakesItsInterceptorsAlong) {
  Watched<int> begun;
  int ended = 0;
  int destroyed = 0;
  struct Guard {
    int& count;
    ~Guard() { ++count; }
  };
  bool early = false;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    const Guard guard{destroyed};
    ++begun;
    absl::Status status = early ? co_await SleepUntil(kNever) : co_await next();
    ++ended;
    co_return status;
  }});
  const auto run = [&]() -> Task<absl::Status> {
    auto stream = std::make_unique<ClientReaderWriter<StreamItem, StreamItem>>(stub_->Ignore());
    Task<absl::Status> finish = stream->Finish();
    const auto destroy = [&]() -> Task<absl::Status> {
      (void)co_await begun.Until(1);
      if (!early) (void)co_await service_.waiting.Until(1);
      stream.reset();
      co_return absl::OkStatus();
    };
    auto [finished, done] = co_await WhenAll(std::move(finish), destroy());
    co_return finished;
  };
  for (const bool first : {false, true}) {
    early = first;
    begun = destroyed = 0;
    const absl::Status status = Run(run());
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_EQ(OutcomeOf(status), early ? Outcome::kNotExecuted : Outcome::kMaybeExecuted);
    EXPECT_EQ(destroyed, 1);
    EXPECT_EQ(ended, 0);
    Eventually([&] { return service_.waiting == 0; }, "the handler has ended");
  }
}

TEST_F(StreamContextTest, AStreamMayBeDestroyedWhileItsFirstAwaitsWaitForInterceptors) {
  Event never;
  Watched<int> begun;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    ++begun;
    VERBENA_CO_RETURN_IF_ERROR(co_await never.Wait());
    co_return co_await next();
  }});
  const auto run = [&]() -> Task<absl::Status> {
    auto stream = std::make_unique<ClientReaderWriter<StreamItem, StreamItem>>(stub_->Echo());
    const auto read = [&]() -> Task<bool> { co_return (co_await stream->Read()).has_value(); };
    const auto write = [&]() -> Task<absl::Status> { co_return co_await stream->Write(ItemOf(1)); };
    const auto destroy = [&]() -> Task<absl::Status> {
      (void)co_await begun.Until(1);
      stream.reset();
      co_return absl::OkStatus();
    };
    auto [has_message, written, destroyed] = co_await WhenAll(read(), write(), destroy());
    EXPECT_FALSE(has_message);
    EXPECT_EQ(destroyed, absl::OkStatus());
    co_return written;
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server_->stats().calls, 0u);
}

// An interceptor may drop the Task of next() before it has ended, as one with a patience does.
TEST_F(StreamContextTest, AnInterceptorThatGivesUpEndsTheStream) {
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    const auto served = [this]() -> Task<absl::Status> {
      (void)co_await service_.waiting.Until(1);
      co_return absl::AbortedError("no patience");
    };
    auto first = co_await WhenAny(next(), served());
    co_return first.index() == 1 ? std::get<1>(std::move(first)) : absl::OkStatus();
  }});
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Ignore();
    EXPECT_FALSE((co_await stream.Read()).has_value());
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()).code(), absl::StatusCode::kAborted);
  Eventually([&] { return service_.waiting == 0; }, "the handler has ended");
}

}  // namespace
}  // namespace verbena::internal
