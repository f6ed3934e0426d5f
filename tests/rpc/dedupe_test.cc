// A deduplicated call runs once, however often it is repeated: after its end, while it runs, over
// another link and on another executor. Its repetitions get its result with payload, metadata and
// outcome. A server that cannot prove that it has not run says so, unless the service's store can.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "gmock/gmock.h"
#include "tests/rpc/counter_service.h"
#include "tests/rpc/watched_device.h"
#include "tests/support/moved_clock.h"
#include "tests/support/watched.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace dedupe_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Its calls go on to their handler once they are cancelled.
class LateInterceptor final : public ServerInterceptor {
 public:
  Task<absl::Status> Intercept(ServerCallView&, ServerNext next) override {
    waiting = true;
    (void)co_await may_go.Until(true);
    co_return co_await next();
  }

  Watched<bool> waiting;
  Watched<bool> may_go;
};

class DedupeTest : public CounterTest {
 protected:
  // The handlers of Add wait until Release().
  void HoldHandlers() {
    service_.handler = [this](ServerContext&, const testing::AddRequest&,
                              testing::AddReply&) -> Task<absl::Status> {
      co_return co_await released_.Wait();
    };
  }
  void Release() {
    server_runtime_->BlockOn([](Event& event) -> Task<void> {
      event.Set();
      co_return;
    }(released_));
  }
  void AwaitRuns(uint64_t runs) {
    Eventually([this, runs] { return service_.runs == runs; }, "the handler begins");
  }

  // Waits until the channel is connected to both servers of its set.
  Task<absl::Status> AwaitBoth() {
    for (;;) {
      VERBENA_CO_RETURN_IF_ERROR(co_await channel_->Connect());
      VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel_->Servers());
      size_t ready = 0;
      for (const ChannelServer& each : servers) {
        ready += each.state == ChannelServer::State::kReady ? 1 : 0;
      }
      if (ready == 2) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    }
  }
  using Result = absl::StatusOr<uint64_t>;
  static Task<std::pair<Result, Result>> Both(Task<Result> a, Task<Result> b) {
    auto [first, second] = co_await WhenAll(std::move(a), std::move(b));
    co_return std::pair(std::move(first), std::move(second));
  }

  // The coroutines that the server's executor has resumed.
  uint64_t ServersResumptions() {
    return server_runtime_->BlockOn([](Runtime& runtime) -> Task<uint64_t> {
      co_return runtime.executor(0).stats().resumed;
    }(*server_runtime_));
  }

  Event released_;  // of the server's executor
};

TEST_F(DedupeTest, ARepeatedCallGetsTheResultOfTheFirst) {
  StartBoth();
  const Token token(*this);
  EXPECT_EQ(token->id(), std::nullopt);
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(Add(*token).value(), 1u) << attempt;
  }
  EXPECT_EQ(service_.runs, 1u);
  EXPECT_EQ(service_.last_name, token->id());
  EXPECT_EQ(kept().repeated, 2u);
}

TEST_F(DedupeTest, CallsWithoutATokenAreCallsOfTheirOwn) {
  StartBoth();
  for (uint64_t call = 1; call <= 3; ++call) {
    EXPECT_EQ(Run(AddWith({})).value(), call);
    EXPECT_EQ(service_.last_name->number, call);
    EXPECT_EQ(service_.acknowledged_below, call);
  }
  EXPECT_EQ(kept().results, 1u) << "the others were acknowledged";
}

TEST_F(DedupeTest, AnOpenTokenKeepsLaterResults) {
  StartBoth();
  {
    const Token token(*this);
    EXPECT_TRUE(Add(*token).ok());
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(Run(AddWith({})).ok());
    EXPECT_EQ(kept().results, 4u);
    EXPECT_EQ(Add(*token).value(), 1u);
  }
  EXPECT_TRUE(Run(AddWith({})).ok());
  EXPECT_EQ(kept().results, 1u);
}

TEST_F(DedupeTest, ACallThatIsRepeatedWhileItRunsIsJoined) {
  StartBoth();
  HoldHandlers();
  const Token token(*this);
  JoinHandle<absl::StatusOr<uint64_t>> first = client_runtime_->Spawn(AddWith({.dedupe = &*token}));
  AwaitRuns(1);
  JoinHandle<absl::StatusOr<uint64_t>> second =
      client_runtime_->Spawn(AddWith({.dedupe = &*token}));
  Eventually([this] { return kept().repeated == 1; }, "the second attempt waits");
  Release();
  EXPECT_EQ(first.Join().value(), 1u);
  EXPECT_EQ(second.Join().value(), 1u);
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DedupeTest, AnAttemptThatWaitsEndsWithItsOwnDeadline) {
  StartBoth();
  HoldHandlers();
  const Token token(*this);
  JoinHandle<absl::StatusOr<uint64_t>> first = client_runtime_->Spawn(AddWith({.dedupe = &*token}));
  AwaitRuns(1);
  const absl::Status second =
      Run(AddWith({.deadline = std::chrono::milliseconds(20), .dedupe = &*token})).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(second)) << second;
  EXPECT_EQ(OutcomeOf(second), Outcome::kMaybeExecuted);
  Release();
  EXPECT_EQ(first.Join().value(), 1u);
}

TEST_F(DedupeTest, ACallerWhoGivesUpAnAttemptLetsTheCallGoOn) {
  StartBoth();
  HoldHandlers();
  const Token token(*this);
  JoinHandle<absl::StatusOr<uint64_t>> first = client_runtime_->Spawn(AddWith({.dedupe = &*token}));
  AwaitRuns(1);
  first.RequestCancel();
  EXPECT_TRUE(absl::IsCancelled(first.Join().status()));
  // The CANCEL has left by now, and comes ahead of the next request.
  JoinHandle<absl::StatusOr<uint64_t>> second =
      client_runtime_->Spawn(AddWith({.dedupe = &*token}));
  Eventually([this] { return kept().repeated == 1; }, "the second attempt waits");
  Release();
  EXPECT_EQ(second.Join().value(), 1u);
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DedupeTest, ACallOutlivesItsLinkAndIsJoinedOverAnother) {
  StartBoth();
  HoldHandlers();
  const Token token(*this);
  breaker_.Arm(CallEvent::kRequestArrived);
  const absl::Status lost = Add(*token).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_EQ(OutcomeOf(lost), Outcome::kMaybeExecuted);
  EXPECT_TRUE(token->may_have_run());
  EXPECT_TRUE(Run(AwaitLink()).ok());
  JoinHandle<absl::StatusOr<uint64_t>> second =
      client_runtime_->Spawn(AddWith({.dedupe = &*token}));
  Eventually([this] { return kept().repeated == 1; }, "the second attempt waits");
  Release();
  EXPECT_EQ(second.Join().value(), 1u);
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DedupeTest, AResultThatWasLostOnItsWayIsThereForTheNextAttempt) {
  StartBoth();
  const Token token(*this);
  breaker_.Arm(CallEvent::kResponsePosted);
  EXPECT_TRUE(absl::IsUnavailable(Add(*token).status()));
  EXPECT_TRUE(Run(AwaitLink()).ok());
  EXPECT_EQ(Add(*token).value(), 1u);
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DedupeTest, ARequestThatWasLostOnItsWayRuns) {
  StartBoth();
  EXPECT_TRUE(Run(AwaitLink()).ok());
  const Token token(*this);
  breaker_.Arm(CallEvent::kRequestPosted);
  EXPECT_EQ(OutcomeOf(Add(*token).status()), Outcome::kMaybeExecuted);
  EXPECT_TRUE(Run(AwaitLink()).ok());
  EXPECT_EQ(Add(*token).value(), 1u);
}

// One server by two addresses is a set of two to its client, with a link to each of two executors.
TEST_F(DedupeTest, AnotherExecutorOfTheServerFindsTheCall) {
  server_runtime_ = StartRuntime({.executors = 2});
  ServeWith(service_, {.address = "0.0.0.0:0"});
  client_runtime_ = StartRuntime();
  const std::string port = server_->address().substr(server_->address().rfind(':'));
  channel_ =
      std::make_unique<Channel>(*client_runtime_, "static:127.0.0.1" + port + ",127.0.0.2" + port);
  stub_ = std::make_unique<testing::Counter::Stub>(*channel_);
  ASSERT_TRUE(Run(AwaitBoth()).ok());
  const Token token(*this);
  for (int attempt = 0; attempt < 4; ++attempt) EXPECT_EQ(Add(*token).value(), 1u) << attempt;
  for (int round = 0; round < 50; ++round) {
    const Token each(*this);
    const auto [a, b] = Run(Both(AddWith({.dedupe = &*each}), AddWith({.dedupe = &*each})));
    ASSERT_TRUE(a.ok() || OutcomeOf(a.status()) == Outcome::kMaybeExecuted) << a.status();
    ASSERT_TRUE(b.ok() || OutcomeOf(b.status()) == Outcome::kMaybeExecuted) << b.status();
    EXPECT_EQ(service_.runs, 2u + round);
  }
}

// --- the highest number of a client

TEST_F(DedupeTest, ANameTellsTheHighestNumberThatItsClientHasGiven) {
  StartBoth();
  bool refuses = true;
  service_.handler = [&](ServerContext& context, const testing::AddRequest&,
                         testing::AddReply&) -> Task<absl::Status> {
    co_return refuses ? context.NotExecuted(absl::UnavailableError("full")) : absl::OkStatus();
  };
  const Token first(*this);
  EXPECT_FALSE(Add(*first).ok());
  EXPECT_EQ(service_.highest, 1u);
  refuses = false;
  EXPECT_TRUE(Run(AddWith({})).ok());
  EXPECT_EQ(service_.highest, 2u);
  EXPECT_TRUE(Add(*first).ok());
  EXPECT_EQ(service_.last_name->number, 1u);
  EXPECT_EQ(service_.highest, 2u);
  EXPECT_TRUE(Run(AddWith({.metadata = {{"fill", std::string(2000, 'f')}}})).ok());
  EXPECT_EQ(service_.last_name->number, 3u);
  EXPECT_EQ(service_.highest, 0u) << "its block leaves before the request";
}

// The server's clock goes on by hours when a test says so.
class ForgetfulServerTest : public DedupeTest {
 protected:
  void Start(ServerOptions options) {
    RuntimeOptions runtime{.clock = &clock_};
    runtime.limits.ping_interval = runtime.limits.connect_timeout = std::chrono::hours(1000);
    runtime.limits.idle_timeout = Duration::zero();
    server_runtime_ = StartRuntime(std::move(runtime), breaker_.device());
    options.address = port_.address();
    ServeWith(service_, std::move(options));
    StartClient();
  }
  // Another client's call.
  absl::Status AddOfAnother() {
    Channel other(*client_runtime_, server_->address());
    const auto add = [](testing::Counter::Stub stub) -> Task<absl::Status> {
      co_return (co_await stub.Add(testing::AddRequest())).status();
    };
    return Run(add(testing::Counter::Stub(other)));
  }
  void TearDown() override {
    stub_.reset();
    StopAll();
  }

  MovedClock clock_;
};

TEST_F(ForgetfulServerTest, ARepetitionThatWasForgottenIsToldFromAFirstCall) {
  Start({.dedupe = {.max_results = 1}});
  bool refuses = true;
  service_.handler = [&](ServerContext& context, const testing::AddRequest&,
                         testing::AddReply&) -> Task<absl::Status> {
    co_return refuses ? context.NotExecuted(absl::UnavailableError("full")) : absl::OkStatus();
  };
  const Token early(*this);
  const Token ran(*this);
  EXPECT_FALSE(Add(*early).ok());
  refuses = false;
  EXPECT_TRUE(Add(*ran).ok());
  // The server has room for one client, and remembers that there was another one.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(AddOfAnother(), absl::OkStatus());
  clock_.Advance(std::chrono::hours(1));
  const uint64_t runs = service_.runs;
  EXPECT_TRUE(Add(*early).ok()) << "nobody has run it";
  const absl::Status repeated = Add(*ran).status();
  EXPECT_TRUE(absl::IsAborted(repeated)) << repeated;
  EXPECT_EQ(service_.runs, runs + 1);
  const Token later(*this);
  breaker_.Arm(CallEvent::kRequestPosted);
  EXPECT_EQ(OutcomeOf(Add(*later).status()), Outcome::kMaybeExecuted);
  EXPECT_TRUE(Run(AwaitLink()).ok());
  const absl::StatusOr<uint64_t> proven = Add(*later);
  EXPECT_TRUE(proven.ok()) << "it was given after the client had come again: " << proven.status();
}

TEST_F(ForgetfulServerTest, TheHighestNumberOfARequestThatWaitedForLongIsNotKnown) {
  const auto interceptor = std::make_shared<LateInterceptor>();
  Start({.interceptors = {interceptor}});
  JoinHandle<absl::StatusOr<uint64_t>> call = client_runtime_->Spawn(AddWith({}));
  EXPECT_EQ(Run(interceptor->waiting.Until(true)), absl::OkStatus());
  clock_.Advance(DedupeOptions().keep_for + std::chrono::seconds(1));
  // The executor reads its clock now and then.
  const auto hear_of_it = [this, late = clock_.Now()]() -> Task<absl::Status> {
    while (server_runtime_->executor(0).now() < late) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    co_return absl::OkStatus();
  };
  EXPECT_EQ(server_runtime_->BlockOn(hear_of_it()), absl::OkStatus());
  interceptor->may_go = true;
  EXPECT_TRUE(call.Join().ok());
  EXPECT_EQ(service_.highest, 0u);
}

// --- results

TEST_F(DedupeTest, PayloadAndTrailingMetadataAreKept) {
  StartBoth();
  const auto swap = [this](DedupeToken& token, size_t bytes,
                           CallInfo& info) -> Task<absl::StatusOr<std::string>> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(bytes));
    std::memset(buffer.data(), 'p', bytes);
    auto reply = co_await stub_->Swap(
        testing::AddRequest(),
        {.info = &info, .request_payload = std::move(buffer), .dedupe = &token});
    if (!reply.ok()) co_return reply.status();
    co_return std::string(reply->payload.data(), reply->payload.size());
  };
  for (const size_t bytes : {100u, 50'000u}) {
    const Token token(*this);
    CallInfo info;
    const std::string first = Run(swap(*token, bytes, info)).value();
    EXPECT_EQ(first.size(), bytes);
    EXPECT_EQ(Run(swap(*token, bytes, info)).value(), first) << bytes;
    const absl::Status other = Run(swap(*token, bytes + 1, info)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(other)) << "another payload: " << other;
  }
  service_.handler = [](ServerContext& context, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    EXPECT_TRUE(context.AddTrailingMetadata("rows", "7").ok());
    co_return absl::OkStatus();
  };
  const Token token(*this);
  for (int attempt = 0; attempt < 2; ++attempt) {
    CallInfo info;
    EXPECT_TRUE(Run(AddWith({.info = &info, .dedupe = &*token})).ok());
    EXPECT_EQ(info.trailing_metadata.size(), 1u) << attempt;
    EXPECT_EQ(info.trailing_metadata.Get("rows"), "7") << attempt;
  }
}

TEST_F(DedupeTest, ALargePayloadIsComparedInSlicesBetweenWhichOthersRun) {
  constexpr size_t kSlices = 64;
  StartBoth();
  const auto swap = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer,
                                co_await channel_->AllocateBuffer(kSlices * kChecksumSliceBytes));
    std::memset(buffer.data(), 'p', buffer.size());
    co_return (co_await stub_->Swap(testing::AddRequest(), {.request_payload = std::move(buffer)}))
        .status();
  };
  ASSERT_EQ(Run(swap()), absl::OkStatus()) << "so that the memory is registered";
  const uint64_t before = ServersResumptions();
  ASSERT_EQ(Run(swap()), absl::OkStatus());
  EXPECT_GE(ServersResumptions() - before, kSlices - 1);
}

// Its client may repeat it elsewhere. The shutdown's last limit must not pass before the refusal
// has left, so the server's clock stands.
TEST_F(DedupeTest, ACallThatAShutdownCancelsBetweenSlicesIsRefused) {
  MovedClock clock;
  server_runtime_ = StartRuntime({.clock = &clock}, breaker_.device());
  const auto interceptor = std::make_shared<LateInterceptor>();
  ServeWith(service_, {.address = port_.address(), .interceptors = {interceptor}});
  StartClient();
  const auto swap = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer,
                                co_await channel_->AllocateBuffer(2 * kChecksumSliceBytes));
    std::memset(buffer.data(), 'p', buffer.size());
    co_return (co_await stub_->Swap(testing::AddRequest(), {.request_payload = std::move(buffer)}))
        .status();
  };
  JoinHandle<absl::Status> call = client_runtime_->Spawn(swap());
  EXPECT_EQ(Run(interceptor->waiting.Until(true)), absl::OkStatus());
  clock.Stop();
  std::thread shutdown([this] { EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty()); });
  const absl::Status status = call.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(service_.runs, 0u);
  clock.GoOn();
  shutdown.join();
  stub_.reset();
  StopAll();
}

TEST_F(DedupeTest, APayloadThatWasWrittenInPiecesIsKept) {
  StartBoth();
  service_.handler = [](ServerContext& context, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer data, co_await context.AllocateBuffer(3000));
    std::memset(data.data(), 'a', 1000);
    std::memset(data.data() + 1000, 'b', 2000);
    VERBENA_CO_RETURN_IF_ERROR(co_await context.WriteResponsePayload(data.Slice(0, 1000)));
    VERBENA_CO_RETURN_IF_ERROR(co_await context.WriteResponsePayload(data.Slice(1000, 2000)));
    co_return absl::OkStatus();
  };
  const Token token(*this);
  const auto swap = [this, &token]() -> Task<absl::StatusOr<std::string>> {
    auto reply = co_await stub_->Swap(testing::AddRequest(),
                                      {.max_response_payload = 10'000, .dedupe = &*token});
    if (!reply.ok()) co_return reply.status();
    co_return std::string(reply->payload.data(), reply->payload.size());
  };
  const std::string whole = std::string(1000, 'a') + std::string(2000, 'b');
  EXPECT_EQ(Run(swap()).value(), whole);
  EXPECT_EQ(Run(swap()).value(), whole);
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DedupeTest, AFailureIsKeptWithItsDetailsAndOutcome) {
  StartBoth();
  service_.handler = [](ServerContext&, const testing::AddRequest& request,
                        testing::AddReply&) -> Task<absl::Status> {
    if (request.call() == 2) throw 7;
    absl::Status failed = absl::DataLossError("as asked");
    failed.SetPayload("type.example/detail", absl::Cord("seven"));
    co_return failed;
  };
  const Token token(*this);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = Add(*token).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_EQ(status.GetPayload("type.example/detail"), absl::Cord("seven"));
    EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  }
  const Token thrown(*this);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = Add(*thrown, 2).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  }
  EXPECT_EQ(service_.runs, 2u);
}

TEST_F(DedupeTest, TheLogNamesAMethodOnceWhoseKeptFailureMayPass) {
  StartBoth();
  absl::Status failure = absl::UnavailableError("conflict");
  bool is_refusal = true;
  service_.handler = [&](ServerContext& context, const testing::AddRequest&,
                         testing::AddReply&) -> Task<absl::Status> {
    co_return is_refusal ? context.NotExecuted(failure) : failure;
  };
  const auto warnings = [this] {
    CapturedLog log;
    EXPECT_FALSE(Run(AddWith({})).ok());
    std::vector<std::string> lines = log.Take();
    std::erase_if(lines, [](const std::string& line) {
      return line.find("the handler of") == std::string::npos;
    });
    return lines;
  };
  EXPECT_THAT(warnings(), IsEmpty()) << "it may run later";
  is_refusal = false;
  failure = absl::NotFoundError("no such account");
  EXPECT_THAT(warnings(), IsEmpty()) << "it does not pass";
  failure = absl::AbortedError("conflict");
  EXPECT_THAT(warnings(),
              ElementsAre(AllOf(HasSubstr("the handler of verbena.testing.Counter/Add ended with "
                                          "ABORTED, which may pass"),
                                HasSubstr("return ServerContext::NotExecuted(status)"))));
  EXPECT_THAT(warnings(), IsEmpty()) << "said once";
}

TEST_F(DedupeTest, ACallThatItsHandlerRefusesMayRunLater) {
  StartBoth();
  bool refuses = true;
  service_.handler = [&](ServerContext& context, const testing::AddRequest&,
                         testing::AddReply&) -> Task<absl::Status> {
    if (!refuses) co_return absl::OkStatus();
    co_return context.NotExecuted(absl::UnavailableError("not the leader"));
  };
  const Token token(*this);
  const absl::Status refused = Add(*token).status();
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted) << refused;
  EXPECT_FALSE(token->may_have_run());
  refuses = false;
  EXPECT_EQ(Add(*token).value(), 2u);
}

TEST_F(DedupeTest, ALargeResultIsNotKeptButTheCallIsKnownToHaveRun) {
  StartBoth({.max_result_bytes = 1000});
  service_.handler = [](ServerContext& context, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    (void)context.AddTrailingMetadata("fill", std::string(1001, 'f'));
    co_return absl::OkStatus();
  };
  const Token token(*this);
  EXPECT_TRUE(Add(*token).ok());
  const absl::Status again = Add(*token).status();
  EXPECT_TRUE(absl::IsResourceExhausted(again)) << again;
  EXPECT_EQ(OutcomeOf(again), Outcome::kExecuted);
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DedupeTest, AClientThatNeverAcknowledgesIsBounded) {
  StartBoth({.max_results = 4});
  std::vector<std::unique_ptr<Token>> tokens;
  for (uint64_t call = 1; call <= 10; ++call) {
    tokens.push_back(std::make_unique<Token>(*this));
    EXPECT_EQ(Add(**tokens.back()).value(), call);
  }
  EXPECT_EQ(kept().results, 4u);
  EXPECT_EQ(Add(**tokens[9]).value(), 10u);
  const absl::Status dropped = Add(**tokens[0]).status();
  EXPECT_TRUE(absl::IsAborted(dropped)) << dropped;
  EXPECT_EQ(OutcomeOf(dropped), Outcome::kMaybeExecuted);
  EXPECT_EQ(service_.runs, 10u);
  EXPECT_EQ(kept().unproven, 1u);
}

// --- misuse

TEST_F(DedupeTest, ATokenIsGoodForOneRequestAlone) {
  StartBoth();
  const Token token(*this);
  EXPECT_TRUE(Add(*token, 1).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Add(*token, 2).status()));
  const auto subtract = [](testing::Counter::Stub& stub, DedupeToken& used) -> Task<absl::Status> {
    testing::AddRequest request;
    request.set_call(1);
    co_return (co_await stub.Subtract(request, {.dedupe = &used})).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(Run(subtract(*stub_, *token))));
  Channel other(*client_runtime_, server_->address());
  testing::Counter::Stub other_stub(other);
  const absl::Status elsewhere = Run(subtract(other_stub, *token));
  EXPECT_TRUE(absl::IsInvalidArgument(elsewhere)) << elsewhere;
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DedupeTest, AMethodThatIsNotDeduplicatedTakesNoToken) {
  StartBoth();
  const Token token(*this);
  const auto count = [this](CallOptions options) -> Task<absl::Status> {
    co_return (co_await stub_->Count(testing::AddRequest(), std::move(options))).status();
  };
  EXPECT_TRUE(Run(count({})).ok());
  const absl::Status refused = Run(count({.dedupe = &*token}));
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
  EXPECT_EQ(service_.runs, 1u);
}

// --- restarts

TEST_F(DedupeTest, AServerThatRestartedProvesNothingOfEarlierAttempts) {
  StartBoth();
  const Token token(*this);
  EXPECT_EQ(Add(*token).value(), 1u);
  RestartServer();
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = Add(*token).status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  }
  EXPECT_EQ(service_.runs, 1u);
  EXPECT_EQ(Run(AddWith({})).value(), 2u) << "a call that never ran before";
}

TEST_F(DedupeTest, ALaterAttemptThatIsNotSentLeavesItOpenWhetherTheCallRan) {
  StartBoth();
  const Token token(*this);
  breaker_.Arm(CallEvent::kResponsePosted);
  EXPECT_FALSE(Add(*token).ok());
  server_.reset();
  const absl::Status unsent = Add(*token).status();
  EXPECT_TRUE(absl::IsUnavailable(unsent)) << unsent;
  EXPECT_EQ(OutcomeOf(unsent), Outcome::kMaybeExecuted);
}

class MapStore final : public DedupeStore {
 public:
  Task<absl::StatusOr<std::optional<DedupeResult>>> Lookup(RequestId id) override {
    ++lookups;
    if (!works) co_return absl::UnavailableError("the disk is asleep");
    const auto found = replies.find(id.number);
    if (found == replies.end()) co_return std::nullopt;
    co_return DedupeResult{.reply = found->second};
  }

  std::map<uint64_t, std::string> replies;  // by the name's number
  bool works = true;
  int lookups = 0;
};

TEST_F(DedupeTest, AStoreKnowsWhatRanBeforeTheRestart) {
  MapStore store;
  StartBoth({.store = &store});
  service_.handler = [&store](ServerContext& context, const testing::AddRequest& request,
                              testing::AddReply& reply) -> Task<absl::Status> {
    if (request.call() == 1) store.replies[context.dedupe_id()->number] = reply.SerializeAsString();
    co_return absl::OkStatus();
  };
  const Token stored(*this);
  const Token lost(*this);
  EXPECT_EQ(Add(*stored, 1).value(), 1u);
  EXPECT_EQ(Add(*lost, 2).value(), 2u);
  EXPECT_EQ(store.lookups, 0) << "no call was repeated";
  RestartServer({.store = &store});
  store.works = false;
  const absl::Status asleep = Add(*stored, 1).status();
  EXPECT_TRUE(absl::IsUnavailable(asleep)) << asleep;
  EXPECT_EQ(OutcomeOf(asleep), Outcome::kMaybeExecuted);
  store.works = true;
  EXPECT_EQ(Add(*stored, 1).value(), 1u);
  EXPECT_EQ(Add(*stored, 1).value(), 1u);
  EXPECT_EQ(store.lookups, 2) << "the server keeps what it has looked up";
  EXPECT_EQ(Add(*lost, 2).value(), 3u) << "it was never committed";
  server_.reset();
}

TEST_F(DedupeTest, AStoreIsAskedForACallWhoseHandlerCouldNotTell) {
  MapStore store;
  StartBoth({.store = &store});
  service_.handler = [](ServerContext& context, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    co_return context.MaybeExecuted(absl::UnavailableError("the leader has changed"));
  };
  const Token token(*this);
  const absl::Status open = Add(*token).status();
  EXPECT_TRUE(absl::IsUnavailable(open)) << open;
  EXPECT_EQ(OutcomeOf(open), Outcome::kMaybeExecuted);
  EXPECT_TRUE(token->may_have_run());
  testing::AddReply reply;
  reply.set_count(7);
  store.replies[token->id()->number] = reply.SerializeAsString();
  EXPECT_EQ(Add(*token).value(), 7u) << "it has taken effect by now";
  EXPECT_EQ(service_.runs, 1u);
  server_.reset();
}

// The store knows what the handler has committed before it throws.
TEST_F(DedupeTest, AStoreIsAskedForACallWhoseHandlerThrew) {
  MapStore store;
  StartBoth({.store = &store});
  service_.handler = [&store](ServerContext& context, const testing::AddRequest&,
                              testing::AddReply& reply) -> Task<absl::Status> {
    store.replies[context.dedupe_id()->number] = reply.SerializeAsString();
    throw std::bad_alloc();
    co_return absl::OkStatus();
  };
  const Token token(*this);
  const absl::Status thrown = Add(*token).status();
  EXPECT_TRUE(absl::IsInternal(thrown)) << thrown;
  EXPECT_EQ(OutcomeOf(thrown), Outcome::kMaybeExecuted);
  EXPECT_EQ(Add(*token).value(), 1u);
  EXPECT_EQ(store.lookups, 1);
  EXPECT_EQ(service_.runs, 1u);
  server_.reset();
}

// Without a store nothing says that the call may run again.
TEST_F(DedupeTest, ACallWhoseHandlerCouldNotTellRunsOnce) {
  StartBoth();
  service_.handler = [](ServerContext& context, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    co_return context.MaybeExecuted(absl::UnavailableError("the leader has changed"));
  };
  const Token token(*this);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(OutcomeOf(Add(*token).status()), Outcome::kMaybeExecuted);
  }
  EXPECT_EQ(service_.runs, 1u);
}

}  // namespace dedupe_test
}  // namespace verbena::internal
