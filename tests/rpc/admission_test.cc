// Bounds of calls and of the wait for a turn refuse what is beyond them, and close no
// link. A call that waits ends like every other: it is cancelled, loses its link, or is shut down.

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/expect_overload.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/stream_service.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace verbena::internal {
namespace admission_test {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr char kEcho[] = "verbena.testing.Testing/Echo";

// Its handlers of Echo wait until the test opens the gate. On the server's executor.
class GateService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override {
    order.push_back(request.number());
    reply.set_number(request.number());
    ++running;
    const absl::Status opened = co_await gate.Wait();
    --running;
    co_return opened;
  }
  // Never suspends.
  Task<absl::Status> Count(ServerContext&, const testing::Empty&, testing::CountReply&) override {
    turns.push_back(runtime->executor(0).stats().turns);
    clock->Advance(microseconds(50));
    co_return absl::OkStatus();
  }

  std::vector<uint64_t> order;  // numbers of Echo, as their handlers began
  std::atomic<int> running{0};
  Event gate;
  std::vector<uint64_t> turns;  // of the executor, in which handlers of Count ran
  Runtime* runtime = nullptr;
  MovedClock* clock = nullptr;
};

// The end of one call, as its caller sees it.
struct Ended {
  std::atomic<bool> done{false};
  absl::Status status;
};

class AdmissionTest : public RuntimePair {
 protected:
  void TearDown() override {
    if (server_ != nullptr) Open();
    if (thread_.joinable()) thread_.join();
    // Before what their tasks refer to.
    other_runtime_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }

  void Start(ServerOptions options) {
    LinkLimits limits;
    limits.ping_interval = hours(1000);
    limits.idle_timeout = Duration::zero();
    // A handshake may still wait for its last word when the clock moves.
    limits.connect_timeout = hours(1000);
    server_runtime_ = StartRuntime({.limits = limits, .clock = &clock_});
    service_.runtime = server_runtime_.get();
    service_.clock = &clock_;
    ServeWith(service_, std::move(options));
    // No PING of a client's brings an answer that the server should send by itself.
    LinkLimits quiet;
    quiet.ping_interval = hours(1000);
    client_runtime_ = StartRuntime({.limits = quiet});
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    other_runtime_ = StartRuntime({.limits = quiet});
    other_channel_ = std::make_unique<Channel>(*other_runtime_, server_->address());
  }

  // An Echo of the first client, or of another.
  Ended& Echo(uint64_t number, CallOptions options = {}) {
    Ended& ended = ended_.emplace_back();
    handles_.push_back(
        client_runtime_->Spawn(EchoOver(*channel_, number, std::move(options), ended)));
    return ended;
  }
  Ended& OthersEcho(uint64_t number, CallOptions options = {}) {
    Ended& ended = ended_.emplace_back();
    other_runtime_->Spawn(EchoOver(*other_channel_, number, std::move(options), ended));
    return ended;
  }
  static Task<void> EchoOver(Channel& channel, uint64_t number, CallOptions options, Ended& ended) {
    testing::Testing::Stub stub(channel);
    testing::EchoRequest request;
    request.set_number(number);
    testing::EchoReply reply;
    ended.status = co_await stub.Echo(request, reply, std::move(options));
    ended.done = true;
  }

  absl::Status Await(const Ended& ended) {
    // Asking the server wakes it, if a clock that has moved tells it of a timer.
    Eventually([&] { return server_->stats().calls > 0 && ended.done; }, "the call ends");
    return ended.status;
  }
  void AwaitRunning(int count) {
    Eventually([&] { return service_.running == count; }, "so many handlers run");
  }
  void AwaitQueued(size_t count) {
    Eventually([&] { return server_->stats().queued == count; }, "so many calls wait");
  }
  void Open() { server_runtime_->BlockOn(SetGate()); }
  Task<void> SetGate() {
    service_.gate.Set();
    co_return;
  }
  void ExpectLinks(size_t count) { EXPECT_EQ(server_runtime_->endpoint_stats(0).links, count); }

  MovedClock clock_;
  GateService service_;
  std::unique_ptr<Runtime> other_runtime_;
  std::unique_ptr<Channel> other_channel_;
  std::deque<Ended> ended_;
  std::vector<JoinHandle<void>> handles_;
  std::thread thread_;
};

using Numbers = std::vector<uint64_t>;

TEST_F(AdmissionTest, CallsBeyondMaxRunningWaitForTheirTurn) {
  Start({.admission = {.max_running = 1, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  Ended& second = Echo(2);
  AwaitQueued(1);
  Ended& third = Echo(3);
  AwaitQueued(2);
  EXPECT_EQ(server_->stats().calls, 1u);
  Open();
  for (const Ended* ended : {&first, &second, &third}) {
    EXPECT_EQ(Await(*ended), absl::OkStatus());
  }
  EXPECT_EQ(service_.order, (Numbers{1, 2, 3}));
  EXPECT_EQ(server_->stats().calls, 3u);
  EXPECT_EQ(server_->stats().queued, 0u);
}

TEST_F(AdmissionTest, ACallThatWaitsTooLongIsRefusedAndItsLinkStays) {
  Start(
      {.admission = {.max_running = 1, .max_queue_age = hours(1), .retry_after = milliseconds(7)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  Ended& second = Echo(2);
  AwaitQueued(1);
  clock_.moved_by = hours(1) + milliseconds(1);
  ExpectOverload(Await(second), milliseconds(7));
  EXPECT_EQ(server_->stats().refusals.age, 1u);
  EXPECT_EQ(server_->stats().refused, 1u);
  EXPECT_FALSE(first.done);
  ExpectLinks(1);
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(Await(Echo(3)), absl::OkStatus());
  EXPECT_EQ(service_.order, (Numbers{1, 3}));
}

TEST_F(AdmissionTest, ACallWhoseDeadlinePassesInTheQueueNeverRuns) {
  Start({.admission = {.max_running = 1, .max_queue_age = hours(100)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  Ended& second = Echo(2, {.deadline = hours(2)});
  AwaitQueued(1);
  clock_.moved_by = hours(3);
  const absl::Status status = Await(second);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(service_.order, (Numbers{1}));
}

TEST_F(AdmissionTest, ACallThatIsCancelledInTheQueueNeverRuns) {
  Start({.admission = {.max_running = 1, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  Ended& second = Echo(2);
  AwaitQueued(1);
  handles_[1].RequestCancel();
  EXPECT_EQ(Await(second).code(), absl::StatusCode::kCancelled);
  AwaitQueued(0);
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(service_.order, (Numbers{1}));
  ExpectLinks(1);
}

TEST_F(AdmissionTest, AQueuedCallWhoseClientIsGoneNeverRuns) {
  Start({.admission = {.max_running = 1, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  OthersEcho(2);
  AwaitQueued(1);
  other_runtime_.reset();
  other_channel_.reset();
  AwaitQueued(0);
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(Await(Echo(3)), absl::OkStatus());
  EXPECT_EQ(service_.order, (Numbers{1, 3}));
  Eventually([this] { return server_->stats().idle_calls == 2; }, "its memory is kept");
}

TEST_F(AdmissionTest, AMethodHasAsManyCallsAsItMay) {
  Start({.admission = {.methods = {{kEcho, {.max_calls = 1}}}}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  ExpectOverload(Await(Echo(2)));
  ExpectOverload(Await(OthersEcho(3)));
  EXPECT_EQ(server_->stats().refusals.method, 2u);
  const auto count = [this]() -> Task<absl::Status> {
    testing::Testing::Stub stub(*channel_);
    testing::CountReply reply;
    co_return co_await stub.Count(testing::Empty(), reply);
  };
  EXPECT_EQ(Run(count()), absl::OkStatus()) << "another method";
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(Await(Echo(4)), absl::OkStatus());
}

TEST_F(AdmissionTest, WrongOptionsAreRefusedByName) {
  server_runtime_ = StartRuntime();
  const auto start = [this](AdmissionOptions admission) {
    return Server::Start(*server_runtime_, {&service_}, {.admission = std::move(admission)})
        .status();
  };
  const auto names = [](const absl::Status& status, const std::string& what) {
    return status.message().find(what) != status.message().npos;
  };
  absl::Status status = start({.methods = {{"verbena.testing.Testing/Eco", {}}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(names(status, "\"verbena.testing.Testing/Eco\"")) << status;
  status = start({.max_queued = 0});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(names(status, "max_queued is 0")) << status;
  EXPECT_TRUE(names(start({.max_queued = 65537}), "max_queued is 65537"));
  EXPECT_TRUE(names(start({.max_queue_age = Duration(999)}), "max_queue_age"));
  EXPECT_TRUE(names(start({.retry_after = Duration(-1)}), "retry_after"));
}

TEST_F(AdmissionTest, OptionsOfTheQueueAreRefusedWithoutOne) {
  server_runtime_ = StartRuntime();
  const auto start = [this](AdmissionOptions admission) {
    return Server::Start(*server_runtime_, {&service_}, {.admission = std::move(admission)})
        .status();
  };
  const std::pair<const char*, AdmissionOptions> wrong[] = {
      {"max_running_per_client is set", {.max_running_per_client = 1}},
      {"max_running_per_source is set", {.max_running_per_source = 1}},
      {"max_queued is set", {.max_queued = 1023}},
      {"max_queue_age is set", {.max_queue_age = milliseconds(2)}}};
  for (auto [message, admission] : wrong) {
    const absl::Status status = start(admission);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_NE(status.message().find(message), status.message().npos) << status;
    admission.max_running = 1;
    EXPECT_EQ(start(admission), absl::OkStatus()) << message;
  }
  EXPECT_EQ(start({.max_pinned_bytes = 1}), absl::OkStatus()) << "bounds that need no queue";
}

// As many as it likes: the queue is full for it, and for nobody else.
TEST_F(AdmissionTest, AClientThatFillsTheQueueHarmsNoOther) {
  Start({.admission = {.max_running = 1, .max_queued = 4, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  Echo(2);
  AwaitQueued(1);
  Echo(3);
  AwaitQueued(2);
  for (uint64_t number = 4; number < 100; ++number) ExpectOverload(Await(Echo(number)));
  EXPECT_EQ(server_->stats().refusals.queue, 96u);
  Ended& others = OthersEcho(100);
  AwaitQueued(3);
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(Await(others), absl::OkStatus());
  AwaitQueued(0);
  Eventually([this] { return server_->stats().calls == 4; }, "all have run");
  EXPECT_EQ(service_.order, (Numbers{1, 100, 2, 3})) << "clients take turns";
}

TEST_F(AdmissionTest, ControlCallsPassWhenAllBoundsAreReached) {
  Start({.max_concurrent_calls = 1, .admission = {.max_running = 1, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  ExpectOverload(Await(Echo(2)));
  ExpectOverload(Await(Echo(3, {.priority = Priority::kBackground})));
  EXPECT_EQ(server_->stats().refusals.executor, 2u);
  Ended& control = Echo(4, {.priority = Priority::kControl});
  AwaitRunning(2);
  ExpectOverload(Await(Echo(5)));
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(Await(control), absl::OkStatus());
  EXPECT_EQ(Await(Echo(6)), absl::OkStatus());
  EXPECT_EQ(service_.order, (Numbers{1, 4, 6}));
}

TEST_F(AdmissionTest, OneClientsControlCallsLeavePlacesToOthers) {
  Start({.max_concurrent_calls = 1,
         .admission = {.max_running = 1, .max_queue_age = hours(1), .control_places = 4}});
  const auto control = [] { return CallOptions{.priority = Priority::kControl}; };
  Echo(1, control());
  AwaitRunning(1);
  Echo(2, control());
  AwaitRunning(2);
  Echo(3, control());  // a normal one, since it has as many places as are free
  AwaitRunning(3);
  ExpectOverload(Await(Echo(4, control())));
  OthersEcho(5, control());
  AwaitRunning(4);
  Open();
  for (const Ended& ended : ended_) {
    const absl::Status status = Await(ended);
    if (&ended != &ended_[3]) {
      EXPECT_EQ(status, absl::OkStatus());
    }
  }
}

TEST_F(AdmissionTest, RefusalsWithoutAdmissionSayWhenToRetry) {
  Start({.max_concurrent_calls = 2, .max_calls_per_client = 1});
  Echo(1);
  AwaitRunning(1);
  ExpectOverload(Await(Echo(2)));
  EXPECT_EQ(server_->stats().refusals.client, 1u);
  OthersEcho(3);
  AwaitRunning(2);
  ExpectOverload(Await(Echo(4)));
  EXPECT_EQ(server_->stats().refusals.executor, 1u);
}

TEST_F(AdmissionTest, AShutdownEndsTheCallsThatWaitAndNeverRunsThem) {
  Start({.admission = {.max_running = 1, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  Ended& second = Echo(2);
  AwaitQueued(1);
  EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty());
  EXPECT_EQ(Await(first).code(), absl::StatusCode::kCancelled);
  const absl::Status status = Await(second);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(service_.order, (Numbers{1}));
}

TEST_F(AdmissionTest, AShutdownWithGraceRunsTheCallsThatWait) {
  Start({.admission = {.max_running = 1, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  Ended& second = Echo(2);
  AwaitQueued(1);
  thread_ = std::thread([this] { server_->Shutdown(hours(1)); });
  const auto told = [](Channel& channel) -> Task<bool> {
    co_return channel.Servers()->front().state != ChannelServer::State::kReady;
  };
  Eventually([&] { return Run(told(*channel_)); }, "the client hears of the shutdown");
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  EXPECT_EQ(Await(second), absl::OkStatus());
  thread_.join();
  EXPECT_EQ(service_.order, (Numbers{1, 2}));
}

// Each moves the clock, so the pace is that of slow handlers.
TEST_F(AdmissionTest, TheExecutorPollsBetweenHandlersThatNeverSuspend) {
  Start({.admission = {.max_running = 64, .max_queue_age = hours(1)}});
  const auto count = [](Channel& channel) -> Task<void> {
    testing::Testing::Stub stub(channel);
    testing::CountReply reply;
    EXPECT_EQ(co_await stub.Count(testing::Empty(), reply), absl::OkStatus());
  };
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
  const auto many = [&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    for (int i = 0; i < 12; ++i) scope.Spawn(count(*channel_));
    co_await scope.Join();
  };
  Run(many());
  ASSERT_EQ(service_.turns.size(), 12u);
  for (size_t i = 1; i < service_.turns.size(); ++i) {
    EXPECT_LT(service_.turns[i - 1], service_.turns[i]);
  }
}

// A client gives up a call and uses its slot for another.
TEST_F(AdmissionTest, ANewCallInTheSlotOfOneThatWaitsCancelsThat) {
  Start({.admission = {.max_running = 1, .max_queue_age = hours(1)}});
  Ended& first = Echo(1);
  AwaitRunning(1);
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  testing::EchoRequest request;
  request.set_number(2);
  rogue.Send(EncodeSend(kCorrect, {Request(kEcho, 3, 1, request.SerializeAsString())}));
  AwaitQueued(1);
  request.set_number(3);
  rogue.Send(EncodeSend(kCorrect, {Request(kEcho, 3, 2, request.SerializeAsString())}));
  const std::vector<RogueFrame> answers = rogue.Receive();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.call_generation, 1u);
  EXPECT_EQ(answers[0].header.status_code, static_cast<uint8_t>(absl::StatusCode::kCancelled));
  AwaitQueued(1);
  Open();
  EXPECT_EQ(Await(first), absl::OkStatus());
  AwaitQueued(0);
  Eventually([this] { return server_->stats().calls == 2; }, "the second ran");
  EXPECT_EQ(service_.order, (Numbers{1, 3}));
}

class AdmissionOfStreamsTest : public RuntimePair {
 protected:
  void Start(AdmissionOptions admission) {
    server_runtime_ = StartRuntime();
    ServeWith(service_, {.admission = std::move(admission)});
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  }
  // The number of items that a stream of so many brings.
  static Task<absl::StatusOr<uint32_t>> Count(Channel& channel, uint32_t count, size_t filler) {
    testing::Streaming::Stub stub(channel);
    testing::CountRequest request;
    request.set_count(count);
    request.set_filler(std::string(filler, 'f'));
    auto reader = stub.Count(request);
    testing::StreamItem item;
    uint32_t read = 0;
    while (co_await reader.Read(item)) ++read;
    VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
    co_return read;
  }

  StreamingService service_;
};

// A stream may last for ever, so it waits for its turn and then takes no place.
TEST_F(AdmissionOfStreamsTest, AStreamThatHasBegunTakesNoPlace) {
  Start({.max_running = 1, .max_queue_age = hours(1)});
  const auto open = [](Channel& channel) -> Task<absl::Status> {
    testing::Streaming::Stub stub(channel);
    auto first = stub.Echo();
    auto second = stub.Echo();
    for (auto* stream : {&first, &second}) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream->Write(ItemOf(7)));
      testing::StreamItem item;
      const bool read = co_await stream->Read(item);
      if (!read || item.number() != 7) co_return absl::DataLossError("not what was sent");
    }
    testing::StreamItem reply;
    co_return co_await stub.Say(ItemOf(8), reply);
  };
  EXPECT_EQ(Run(open(*channel_)), absl::OkStatus());
}

TEST_F(AdmissionOfStreamsTest, ARequestThatComesAsAMessageIsReadWhenItsTurnComes) {
  Start({.max_running = 1, .max_queue_age = hours(1)});
  const auto hold = [](Channel& channel) -> Task<void> {
    testing::Streaming::Stub stub(channel);
    (void)co_await stub.Hold(ItemOf(1));
  };
  for (const size_t filler : {0, 100, 100'000}) {
    JoinHandle<void> held = client_runtime_->Spawn(hold(*channel_));
    Eventually([this] { return service_.running == 1; }, "a handler has the only place");
    JoinHandle<absl::StatusOr<uint32_t>> counted =
        client_runtime_->Spawn(Count(*channel_, 3, filler));
    Eventually([this] { return server_->stats().queued == 1; }, "the stream waits");
    held.RequestCancel();
    held.Join();
    EXPECT_EQ(counted.Join().value_or(0), 3u) << filler;
    Eventually([this] { return service_.running == 0; }, "the handlers end");
    EXPECT_EQ(service_.filler_bytes, filler);
  }
}

}  // namespace admission_test
}  // namespace verbena::internal
