// A unary call brings back its reply or the Status of its failure, in each form of a call, for
// messages of all sizes, many at once. All in one process.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/rpc/testing_service.h"
#include "tests/support/moved_clock.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace unary_test {

class UnaryTest : public RpcTest {
 protected:
  UnaryTest() {
    LinkLimits limits;
    limits.ping_interval = std::chrono::hours(1);  // a test counts all frames
    StartServer({}, {.limits = limits});
    StartClient({.limits = limits});
  }

  Task<absl::Status> CallFail(int code, std::string url = "") {
    testing::FailRequest request;
    request.set_code(code);
    request.set_message("as asked");
    request.set_detail_url(url);
    request.set_detail("detail\0bytes");
    absl::StatusOr<testing::Empty> reply = co_await stub_->Fail(request);
    co_return reply.status();
  }

  Task<absl::Status> CallInflate(uint32_t bytes) {
    testing::InflateRequest request;
    request.set_reply_bytes(bytes);
    absl::StatusOr<testing::EchoReply> reply = co_await stub_->Inflate(request);
    if (reply.ok() && reply->data().size() != bytes) co_return absl::DataLossError("cut");
    co_return reply.status();
  }
};

TEST_F(UnaryTest, TheReplyIsTheRequests) {
  EXPECT_EQ(Run(EchoOnce(7, "hello")), absl::OkStatus());
  EXPECT_EQ(Run(EchoOnce(0, "")), absl::OkStatus());
}

Task<absl::Status> AllThreeShapes(testing::Testing::Stub& stub) {
  testing::EchoRequest request;
  request.set_number(1);
  absl::StatusOr<testing::EchoReply> borrowed = co_await stub.Echo(request);
  if (!borrowed.ok()) co_return borrowed.status();
  testing::EchoRequest moved = request;
  absl::StatusOr<testing::EchoReply> owned = co_await stub.Echo(std::move(moved));
  if (!owned.ok()) co_return owned.status();
  testing::EchoReply reply;
  reply.set_data("left over from before");
  absl::Status reused = co_await stub.Echo(request, reply);
  if (!reused.ok()) co_return reused;
  EXPECT_EQ(borrowed->number(), 1u);
  EXPECT_EQ(owned->number(), 1u);
  EXPECT_EQ(reply.number(), 1u);
  EXPECT_EQ(reply.data(), "") << "a reused reply must not keep what it held";
  co_return absl::OkStatus();
}

TEST_F(UnaryTest, AllThreeShapesOfAMethodCall) {
  EXPECT_EQ(Run(AllThreeShapes(*stub_)), absl::OkStatus());
}

TEST_F(UnaryTest, ManyCallsInFlightDoNotMixUpTheirReplies) {
  auto many = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    int failed = 0;
    for (int i = 0; i < 2000; ++i) {
      scope.Spawn([this, i, &failed]() -> Task<void> {
        absl::Status status = co_await EchoOnce(i, std::string(i % 700, static_cast<char>(i)));
        if (!status.ok()) ++failed;
      });
    }
    co_await scope.Join();
    EXPECT_EQ(failed, 0);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(many()), absl::OkStatus());
  // Every frame and every receive is accounted for. A link proves itself by two PINGs, except over
  // shared memory. On iWARP it begins with one more, and one PONG may answer that and the next.
  const EndpointStats client = client_runtime_->endpoint_stats(0);
  const uint64_t pings = client.traffic.frames_sent - 2000u;
  EXPECT_LE(pings, 3u);
  EXPECT_LE(client.traffic.frames_received, 2000u + pings);
  EXPECT_GE(client.traffic.frames_received, 2000u + std::min<uint64_t>(pings, 2));
  EXPECT_LT(client.traffic.sends, 2000u) << "frames of one turn were not coalesced";
}

TEST_F(UnaryTest, AFailedStatusArrivesWithCodeMessageAndDetails) {
  for (int code = 1; code <= 16; ++code) {
    absl::Status status = Run(CallFail(code, "type.example/detail"));
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), "as asked");
    EXPECT_TRUE(status.GetPayload("type.example/detail").has_value());
    EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  }
}

// Neither fits a frame, so the Status travels as a large reply does.
TEST_F(UnaryTest, ALargeFailureArrivesWithMessageAndDetailsInFull) {
  auto call = [this](bool not_executed) -> Task<absl::Status> {
    testing::FailRequest request;
    request.set_code(static_cast<int>(absl::StatusCode::kDataLoss));
    request.set_message(std::string(5000, 'm'));
    request.set_detail_url("type.example/detail");
    request.set_detail_bytes(100'000);
    request.set_retry_after_us(7);
    request.set_not_executed(not_executed);
    co_return (co_await stub_->Fail(request)).status();
  };
  for (bool not_executed : {false, true}) {
    absl::Status status = Run(call(not_executed));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), std::string(5000, 'm'));
    EXPECT_EQ(status.GetPayload("type.example/detail"), std::string(100'000, 'd'));
    EXPECT_EQ(RetryAfterOf(status), std::chrono::microseconds(7));
    EXPECT_EQ(OutcomeOf(status), not_executed ? Outcome::kNotExecuted : Outcome::kExecuted);
  }
}

// Longer than a message may be, so the details are left out, and the call ends all the same.
TEST_F(UnaryTest, AFailureThatIsTooLargeKeepsItsCodeAndItsOutcome) {
  LinkLimits limits;
  limits.max_message_bytes = 64 << 10;
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  server_.reset();
  StartServer({}, {.limits = limits});
  StartClient();
  auto call = [this]() -> Task<absl::Status> {
    testing::FailRequest request;
    request.set_code(static_cast<int>(absl::StatusCode::kDataLoss));
    request.set_message("as asked");
    request.set_detail_url("type.example/detail");
    request.set_detail_bytes(100'000);
    co_return (co_await stub_->Fail(std::move(request))).status();
  };
  absl::Status status = Run(call());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(status.message(), "as asked");
  EXPECT_FALSE(status.GetPayload("type.example/detail").has_value());
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

TEST_F(UnaryTest, AHandlerThatThrowsFailsItsCallAndTellsTheServersLogAlone) {
  CapturedLog log;
  auto call = [this]() -> Task<absl::Status> {
    co_return (co_await stub_->Throw(testing::Empty())).status();
  };
  absl::Status status = Run(call());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(status.message()).find("out of cheese"), std::string::npos) << status;
  bool logged = false;
  for (const std::string& line : log.Take()) logged |= line.find("out of cheese") != line.npos;
  EXPECT_TRUE(logged);
  EXPECT_EQ(Run(EchoOnce(1, "still there")), absl::OkStatus());
}

TEST_F(UnaryTest, AnUnknownMethodIsUnimplementedAndWasNotRun) {
  auto call = [this]() -> Task<absl::Status> {
    static constexpr MethodDescriptor kUnknown("verbena.testing.Testing/Nothing",
                                               Idempotency::kUnknown);
    testing::Empty request, reply;
    co_return co_await UnaryCall<testing::Empty&, testing::Empty&>(internal::CoreOf(*channel_),
                                                                   kUnknown, request, reply, {});
  };
  absl::Status status = Run(call());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(UnaryTest, ARequestThatDoesNotParseIsRefused) {
  // Fail's first field is a varint; Echo's data as its message makes field 2 invalid UTF-8 or a
  // wrong wire type.
  auto call = [this]() -> Task<absl::Status> {
    static constexpr MethodDescriptor kDeadline("verbena.testing.Testing/Fail",
                                                Idempotency::kUnknown);
    testing::EchoRequest request;
    testing::Empty reply;
    request.set_data("\xff\xfe not text");
    co_return co_await UnaryCall<testing::EchoRequest&, testing::Empty&>(
        internal::CoreOf(*channel_), kDeadline, request, reply, {});
  };
  absl::Status status = Run(call());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(UnaryTest, MessagesAroundTheSizeOfAFrameAndFarBeyondItGoThrough) {
  // A frame holds 4568 bytes: two of tag and number, three of tag and length, and data.
  for (size_t bytes : {4568 - 5, 4568 - 4, 4568, 5000, 65536, 3 << 20}) {
    EXPECT_EQ(Run(EchoOnce(1, std::string(bytes, 'x'))), absl::OkStatus()) << bytes;
  }
  for (size_t bytes : {4568 - 4, 4568 - 3, 4568 - 2, 4568, 5000, 65536, 3 << 20}) {
    EXPECT_EQ(Run(CallInflate(bytes)), absl::OkStatus()) << bytes;
  }
}

// Messages beyond LinkLimits::max_message_bytes, which the sides may set to different values.
class LargestMessageTest : public RpcTest {
 protected:
  static constexpr size_t kLargest = 100'000;
  static constexpr size_t kDefault = size_t{4} << 20;

  // A side that is not small has the default.
  void StartWith(bool small_server, bool small_client) {
    LinkLimits small;
    small.max_message_bytes = kLargest;
    StartServer({}, {.limits = small_server ? small : LinkLimits()});
    StartClient({.limits = small_client ? small : LinkLimits()});
  }
  absl::Status EchoOf(size_t bytes) { return Run(EchoOnce(1, std::string(bytes, 'x'))); }
  absl::Status InflateTo(size_t bytes) {
    auto inflate = [this, bytes]() -> Task<absl::Status> {
      testing::InflateRequest request;
      request.set_reply_bytes(bytes);
      co_return (co_await stub_->Inflate(request)).status();
    };
    return Run(inflate());
  }
  void ExpectTooLarge(const absl::Status& status, const char* what, const char* limit) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const std::string message(status.message());
    for (const char* part : {what, limit, "LinkLimits::max_message_bytes",
                             "many parts as a stream, or raise the limit on both sides"}) {
      EXPECT_NE(message.find(part), std::string::npos) << status;
    }
    EXPECT_EQ(EchoOf(1), absl::OkStatus());
    EXPECT_EQ(client_runtime_->endpoint_stats(0).links_lost, 0u) << "the link lives on";
  }
};

TEST_F(LargestMessageTest, AClientRefusesARequestBeforeItSendsIt) {
  StartWith(/*small_server=*/false, /*small_client=*/true);
  const absl::Status status = EchoOf(kLargest);
  ExpectTooLarge(status, "a request of 100006 bytes", "100000");
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(server_->stats().failures, 0u) << "it has not come";
}

TEST_F(LargestMessageTest, AServerRefusesARequest) {
  StartWith(/*small_server=*/true, /*small_client=*/false);
  const absl::Status status = EchoOf(kLargest);
  ExpectTooLarge(status, "a request of 100006 bytes", "100000");
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(LargestMessageTest, AServerSendsNoLargerReply) {
  StartWith(/*small_server=*/true, /*small_client=*/false);
  const absl::Status status = InflateTo(kLargest);
  ExpectTooLarge(status, "a reply of 100004 bytes", "100000");
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

TEST_F(LargestMessageTest, AClientTakesNoLargerReply) {
  StartWith(/*small_server=*/false, /*small_client=*/true);
  ExpectTooLarge(InflateTo(kLargest), "a reply of 100004 bytes", "100000");
}

TEST_F(LargestMessageTest, BothTakeFourMiBByDefault) {
  StartWith(/*small_server=*/false, /*small_client=*/false);
  EXPECT_EQ(InflateTo(kDefault - 5), absl::OkStatus());
  ExpectTooLarge(EchoOf(kDefault), "a request of 4194311 bytes", "4194304");
  ExpectTooLarge(InflateTo(kDefault), "a reply of 4194309 bytes", "4194304");
}

TEST_F(UnaryTest, CallInfoTellsSizesAndTime) {
  auto call = [this]() -> Task<absl::Status> {
    testing::EchoRequest request;
    request.set_data("12345");
    testing::EchoReply reply;
    CallInfo info;
    absl::Status status = co_await stub_->Echo(request, reply, {.info = &info});
    EXPECT_EQ(info.request_bytes, request.ByteSizeLong());
    EXPECT_EQ(info.reply_bytes, reply.ByteSizeLong());
    EXPECT_GE(info.elapsed.count(), 0);
    co_return status;
  };
  EXPECT_EQ(Run(call()), absl::OkStatus());
}

template <typename Call>
concept MaySpawn = requires(Runtime& runtime, Call call) { runtime.Spawn(std::move(call)); };
template <typename Call>
concept MaySpawnOn = requires(Executor& executor, Call call) { Spawn(executor, std::move(call)); };
template <typename... Arguments>
using EchoOf = decltype(std::declval<testing::Testing::Stub&>().Echo(std::declval<Arguments>()...));

TEST_F(UnaryTest, ACallThatBorrowsItsMessagesCannotBeSpawned) {
  using testing::EchoReply;
  using testing::EchoRequest;
  EXPECT_TRUE(MaySpawn<EchoOf<EchoRequest>> && MaySpawnOn<EchoOf<EchoRequest>>);
  EXPECT_FALSE(MaySpawn<EchoOf<EchoRequest&>> || MaySpawnOn<EchoOf<EchoRequest&>>);
  using Filling = EchoOf<const EchoRequest&, EchoReply&>;
  EXPECT_FALSE(MaySpawn<Filling> || MaySpawnOn<Filling>);
}

TEST_F(UnaryTest, AServiceRegisteredTwiceIsRefused) {
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(*server_runtime_, {&service_, &service_});
  EXPECT_EQ(server.status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(UnaryTest, AServiceThatIsNullIsRefused) {
  const absl::Status started = Server::Start(*server_runtime_, {&service_, nullptr}).status();
  EXPECT_EQ(started.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(started.message(), "services[1] of Server::Start() is null: give it a service");
  const absl::Status without =
      Server::Start(*server_runtime_, {&service_}, {.interceptors = {nullptr}}).status();
  EXPECT_EQ(without.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(without.message(), "ServerOptions::interceptors[0] is null");
}

TEST_F(UnaryTest, ABusyPortIsOneClearError) {
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(*client_runtime_, {&service_}, {.address = server_->address()});
  EXPECT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition) << server.status();
}

TEST_F(UnaryTest, TheTimeOfACallIncludesConnecting) {
  constexpr Duration kMoved = std::chrono::seconds(5);
  MovedClock clock;
  auto runtime = StartRuntime({.clock = &clock});
  auto call = [&]() -> Task<Duration> {
    Channel channel(*runtime, server_->address());
    testing::Testing::Stub stub(channel);
    CallInfo info;
    TaskScope scope(runtime->executor(0));
    scope.Spawn([&]() -> Task<void> {
      testing::EchoReply reply;
      EXPECT_EQ(co_await stub.Echo(testing::EchoRequest(), reply, {.info = &info}),
                absl::OkStatus());
    });
    (void)co_await Yield();  // it begins, and connects
    clock.moved_by = kMoved;
    co_await scope.Join();
    co_return info.elapsed;
  };
  EXPECT_GE(runtime->BlockOn(call()), kMoved);
}

TEST_F(UnaryTest, ACallThatDoesNotConnectSaysSoInItsInfo) {
  server_.reset();
  auto call = [this]() -> Task<CallInfo> {
    Channel channel(*client_runtime_, "127.0.0.1:1");
    testing::Testing::Stub stub(channel);
    CallInfo info{.elapsed = Duration(-1)};
    testing::EchoRequest request;
    request.set_data(std::string(100, 'd'));
    testing::EchoReply reply;
    EXPECT_TRUE(absl::IsUnavailable(co_await stub.Echo(request, reply, {.info = &info})));
    co_return info;
  };
  const CallInfo info = Run(call());
  EXPECT_GE(info.elapsed, Duration::zero());
  EXPECT_EQ(info.request_bytes, 102u);
}

TEST_F(UnaryTest, ACallThatIsRefusedAtOnceTellsItsSizeInItsInfo) {
  auto call = [this]() -> Task<CallInfo> {
    EXPECT_EQ(co_await channel_->Connect(), absl::OkStatus());
    CallInfo info{.elapsed = Duration(-1)};
    testing::EchoRequest request;
    request.set_data(std::string(100, 'd'));
    testing::EchoReply reply;
    const absl::Status status =
        co_await stub_->Echo(request, reply, {.deadline = Duration(-1), .info = &info});
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    co_return info;
  };
  const CallInfo info = Run(call());
  EXPECT_GE(info.elapsed, Duration::zero());
  EXPECT_EQ(info.request_bytes, 102u);
}

TEST_F(UnaryTest, ACallThatIsCancelledBeforeItBeginsTakesNoTime) {
  auto echo = [this](CallInfo& info) -> Task<absl::Status> {
    testing::EchoReply reply;
    co_return co_await stub_->Echo(testing::EchoRequest(), reply, {.info = &info});
  };
  auto call = [this, &echo]() -> Task<CallInfo> {
    EXPECT_EQ(co_await channel_->Connect(), absl::OkStatus());
    CancelScope scope;
    scope.Request();
    CallInfo info{.elapsed = Duration(-1)};
    const absl::Status status = co_await echo(info).In(&scope);
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    co_return info;
  };
  EXPECT_EQ(Run(call()).elapsed, Duration::zero());
}

TEST_F(UnaryTest, LargeMessagesAreCountedInACallsInfo) {
  for (const size_t bytes : {size_t{10}, size_t{100'000}}) {
    auto call = [this, bytes]() -> Task<absl::Status> {
      CallInfo info;
      testing::EchoRequest request;
      request.set_data(std::string(bytes, 'd'));
      testing::EchoReply reply;
      absl::Status status = co_await stub_->Echo(request, reply, {.info = &info});
      EXPECT_EQ(info.request_bytes, request.ByteSizeLong());
      EXPECT_EQ(info.reply_bytes, reply.ByteSizeLong());
      EXPECT_GT(info.elapsed, Duration::zero());
      co_return status;
    };
    EXPECT_EQ(Run(call()), absl::OkStatus());
  }
}

}  // namespace unary_test
}  // namespace verbena::internal
