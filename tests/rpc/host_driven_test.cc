// A Runtime without threads serves calls and payloads in its host's loop. Every wait of the host
// drives it, and shutdown ends the calls in flight.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/rpc/payload_service.h"
#include "tests/support/moved_clock.h"
#include "tests/transport/connect/scripted_bootstrap.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace host_driven_test {

using std::chrono::seconds;

// A host's loop over all executors of a runtime, which sleeps in poll() without a timeout.
class HostLoop {
 public:
  explicit HostLoop(Runtime& runtime) : runtime_(runtime), thread_([this] { Run(); }) {}
  // Afterwards the runtime is the calling thread's.
  ~HostLoop() {
    stopped_ = true;
    runtime_.executor(0).PostFunction([] {});
    thread_.join();
  }

 private:
  void Run() {
    while (!stopped_) {
      bool worked = false;
      for (int i = 0; i < runtime_.executors(); ++i) worked |= runtime_.executor(i).Poll();
      if (!worked) Sleep();
    }
  }

  void Sleep() {
    std::vector<pollfd> descriptors;
    for (int i = 0; i < runtime_.executors(); ++i) {
      if (!runtime_.executor(i).Arm()) return;
      descriptors.push_back({.fd = runtime_.executor(i).fd(), .events = POLLIN, .revents = 0});
    }
    poll(descriptors.data(), descriptors.size(), -1);
  }

  Runtime& runtime_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

class HostDrivenRuntimeTest : public PayloadFixture {
 protected:
  static RuntimeOptions HostDriven(int executors) {
    return {.executors = executors, .threads = false};
  }

  static Task<void> ForEver() { (void)co_await SleepUntil(kNever); }

  // A payload there and another one back.
  Task<absl::Status> Swap(size_t bytes) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer given, co_await Filled(bytes));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, co_await channel_->AllocateBuffer(bytes));
    VERBENA_CO_ASSIGN_OR_RETURN(
        WithPayload<testing::PutReply> reply,
        co_await stub_->Swap(testing::PutRequest(), {.request_payload = std::move(given),
                                                     .response_payload_into = std::move(into)}));
    if (!reply->right() || !IsPattern(reply.payload.view(), /*inverted=*/true)) {
      co_return absl::DataLossError("a payload came out wrong");
    }
    co_return absl::OkStatus();
  }

  // A call whose handler waits to be cancelled.
  Task<void> Hold() {
    absl::StatusOr<Buffer> given = co_await Filled(8192);
    absl::StatusOr<Buffer> room = co_await channel_->AllocateBuffer(8192);
    EXPECT_TRUE(given.ok() && room.ok()) << given.status() << room.status();
    if (!given.ok() || !room.ok()) co_return;
    absl::StatusOr<WithPayload<testing::PutReply>> reply = co_await stub_->Hold(
        testing::HoldRequest(),
        {.request_payload = *std::move(given), .response_payload_into = *std::move(room)});
    held_ = reply.status();
    ++ended_;
  }
  // The call is in flight when this returns.
  void StartHold(int executor = 0) {
    const int before = service_.holding;
    client_runtime_->Spawn(Hold(), executor);
    const int ended = ended_;
    Eventually([&] { return service_.holding > before || ended_ > ended; }, "the handler runs");
    ASSERT_EQ(ended_, ended) << "the call ended at once: " << held_;
  }
  void ExpectCallsEnd(int calls) {
    Eventually([&] { return ended_ == calls; }, "every call ends");
    EXPECT_EQ(service_.released, calls);
  }

  void ShareOneRuntime() {
    client_runtime_ = std::move(server_runtime_);
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
  }

  void ExpectSwaps() {
    for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{1} << 20}) {
      for (int executor = 0; executor < client_runtime_->executors(); ++executor) {
        EXPECT_EQ(Run(Swap(bytes), executor), absl::OkStatus()) << bytes << " bytes";
      }
    }
  }

  std::atomic<int> ended_{0};
  absl::Status held_;  // of the Hold() that ended last
};

TEST_F(HostDrivenRuntimeTest, AHostsLoopServesCallsAndPayloads) {
  StartServer(HostDriven(2));
  {
    HostLoop loop(*server_runtime_);
    StartClient({.executors = 2});
    ExpectSwaps();
  }
  // The destructors drive the server's executors on this thread.
}

TEST_F(HostDrivenRuntimeTest, WaitsOfAHostDriveItsCalls) {
  StartServer();
  StartClient(HostDriven(2));
  ExpectSwaps();
}

TEST_F(HostDrivenRuntimeTest, AServerAndItsClientShareOneThread) {
  StartServer(HostDriven(2));
  ShareOneRuntime();
  ExpectSwaps();
  server_.reset();
}

TEST_F(HostDrivenRuntimeTest, AShutdownByTheHostEndsTheCallInFlight) {
  StartServer(HostDriven(2));
  {
    HostLoop loop(*server_runtime_);
    StartClient();
    StartHold();
  }
  EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty()) << "the handler heeds its cancellation";
  ExpectCallsEnd(1);
  EXPECT_EQ(held_, absl::OkStatus());
}

TEST_F(HostDrivenRuntimeTest, AShutdownOnTheThreadOfBothSidesEndsTheCallsInFlight) {
  StartServer(HostDriven(2));
  ShareOneRuntime();
  for (int executor = 0; executor < 2; ++executor) StartHold(executor);
  EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty()) << "the handlers heed it";
  ExpectCallsEnd(2);
  EXPECT_EQ(held_, absl::OkStatus());
  server_.reset();
}

// Nobody drives the client while the server shuts down.
TEST_F(HostDrivenRuntimeTest, AShutdownWaitsForNoClientOfTheSameThread) {
  StartServer(HostDriven(2));
  {
    HostLoop loop(*server_runtime_);
    StartClient(HostDriven(2));
    for (int executor = 0; executor < 2; ++executor) StartHold(executor);
  }
  EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty()) << "the handlers heed it";
  ExpectCallsEnd(2);
  server_.reset();
}

TEST_F(HostDrivenRuntimeTest, TheHostReadsStatisticsOfEveryExecutor) {
  StartServer(HostDriven(2));
  for (int executor = 0; executor < 2; ++executor) {
    EXPECT_EQ(server_runtime_->endpoint_stats(executor).links, 0u);
  }
}

class HeldExecutorTest : public HostDrivenRuntimeTest {
 protected:
  HeldExecutorTest() { clock_.Stop(); }
  ~HeldExecutorTest() override { StopAll(); }

  // A connection to the server on which nothing is sent.
  int Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string& where = server_->address();
    address.sin_port = htons(std::stoi(where.substr(where.rfind(':') + 1)));
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  // Has the executor sleep: no turn of it takes work that comes from here on.
  static void Rest(Executor& executor) {
    while (executor.Poll() || !executor.Arm()) {
    }
  }
  static void AwaitWork(Executor& executor) {
    pollfd descriptor = {.fd = executor.fd(), .events = POLLIN, .revents = 0};
    poll(&descriptor, 1, -1);
  }

  MovedClock clock_;
};

// Its time counts from its beginning, and not from that of the turn.
TEST_F(HeldExecutorTest, AHandshakeThatBeginsInALongTurnHasItsWholeTime) {
  RuntimeOptions options = HostDriven(1);
  options.clock = &clock_;
  StartServer(std::move(options));
  Executor& executor = server_runtime_->executor(0);
  Rest(executor);
  const int fd = Connect();
  AwaitWork(executor);
  // As a handler does that blocks. The acceptor goes on behind it, in the same turn.
  executor.PostFunction([&] {
    (void)executor.now();
    clock_.Advance(seconds(12));
  });
  for (int turn = 0; turn < 10; ++turn) (void)executor.Poll();
  EXPECT_EQ(server_->stats().handshakes_failed, 0u);
  clock_.Advance(seconds(10));
  while (server_->stats().handshakes_failed == 0) (void)executor.Poll();
  close(fd);
}

// A client whose bootstrap refuses the first attempt to connect, and is too busy for the second.
class HeldConnectTest : public HeldExecutorTest {
 protected:
  ~HeldConnectTest() override { StopAll(); }

  void StartClient() {
    RuntimeOptions options = HostDriven(1);
    options.clock = &clock_;
    options.use_bootstrap = &bootstrap_;
    client_runtime_ = StartRuntime(std::move(options));
    channel_ = std::make_unique<Channel>(*client_runtime_, "a:1");
  }
  Executor& executor() { return client_runtime_->executor(0); }
  // Holds the turn as a handler does that blocks.
  void HoldTheTurn(Duration time) {
    (void)executor().now();
    clock_.Advance(time);
  }
  // Polls until that attempt has begun, or `call` has ended. Each turn lasts for `time` before
  // anything else begins in it.
  void PollToAttempt(int attempt, Duration time, const JoinHandle<absl::Status>& call) {
    while (attempts_ < attempt && !call.done()) {
      executor().PostFunction([this, time] { HoldTheTurn(time); });
      (void)executor().Poll();
    }
    EXPECT_EQ(attempts_, attempt);
  }

  int attempts_ = 0;
  Event may_fail_;  // the second attempt
  LocalNetwork network_;
  ScriptedBootstrap bootstrap_{network_, [this](const std::string&) -> Task<absl::Status> {
                                 if (++attempts_ == 1) {
                                   co_return WithRetryAfter(absl::ResourceExhaustedError("full"),
                                                            seconds(1));
                                 }
                                 VERBENA_CO_RETURN_IF_ERROR(co_await may_fail_.Wait());
                                 HoldTheTurn(seconds(2));
                                 co_return absl::DeadlineExceededError("too busy");
                               }};
};

// The first turn takes longer than connect_timeout, within which the client comes again.
TEST_F(HeldConnectTest, AnAttemptCountsItsTimeFromItsBeginningToItsEnd) {
  StartClient();
  executor().PostFunction([this] { HoldTheTurn(seconds(12)); });
  JoinHandle<absl::Status> call = client_runtime_->Spawn(channel_->Connect());
  PollToAttempt(1, seconds(12), call);
  clock_.Advance(seconds(2));
  PollToAttempt(2, seconds(3), call);
  clock_.Advance(seconds(4));
  executor().PostFunction([this] { may_fail_.Set(); });
  const absl::Status failed = call.Join();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_NE(failed.message().find("no link with a:1 after 6.0 s: too busy"), std::string::npos)
      << failed;
}

// A client with two devices, and a server whose handshake over the first one fails in a turn that
// it holds. From then on the server is silent.
class HeldDeviceTest : public HeldExecutorTest {
 protected:
  static constexpr Duration kHeld = seconds(7);

  ~HeldDeviceTest() override { StopAll(); }

  class HeldStream final : public MessageStream {
   public:
    explicit HeldStream(HeldDeviceTest& test) : test_(test) {}

    Task<absl::Status> Send(std::string) override { co_return absl::OkStatus(); }
    Task<absl::StatusOr<std::string>> Receive() override {
      (void)test_.client_runtime_->executor(0).now();
      test_.clock_.Advance(kHeld);
      co_return absl::UnavailableError("it lacks that device");
    }
    void Close() override {}
    const std::string& peer() const override { return peer_; }
    bool same_host() const override { return true; }

   private:
    HeldDeviceTest& test_;
    const std::string peer_ = "a:1";
  };

  class HeldBootstrap final : public Bootstrap {
   public:
    explicit HeldBootstrap(HeldDeviceTest& test) : test_(test) {}

    Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string) override {
      if (++test_.streams_ == 1) co_return std::make_unique<HeldStream>(test_);
      co_return co_await SleepUntil(kNever);
    }
    absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string&) override {
      return absl::UnimplementedError("it is a client's");
    }

   private:
    HeldDeviceTest& test_;
  };

  const std::unique_ptr<SoftDevice> shared_memory_ = *SoftDevice::Create({.name = "near"});
  const std::unique_ptr<SoftDevice> tcp_ = *SoftDevice::Create(
      {.name = "tcp", .shared_memory = false, .tcp = TcpWireOptions{.address = "127.0.0.1"}});
  int streams_ = 0;
  HeldBootstrap bootstrap_{*this};
};

TEST_F(HeldDeviceTest, TheNextDevicesStreamHasItsWholeTime) {
  RuntimeOptions options = HostDriven(1);
  options.clock = &clock_;
  options.use_bootstrap = &bootstrap_;
  client_runtime_ =
      StartRuntime(std::move(options), {.use = shared_memory_.get(), .also_use = tcp_.get()});
  channel_ = std::make_unique<Channel>(*client_runtime_, "a:1");
  JoinHandle<absl::Status> call = client_runtime_->Spawn(channel_->Connect());
  Executor& executor = client_runtime_->executor(0);
  while (streams_ < 2 && !call.done()) (void)executor.Poll();
  ASSERT_EQ(streams_, 2);
  const Duration timeout = LinkLimits().connect_timeout;
  // So much had passed of the turn in which the stream was wanted.
  clock_.Advance(timeout - kHeld);
  for (int turn = 0; turn < 10; ++turn) (void)executor.Poll();
  EXPECT_FALSE(call.done());
  clock_.Advance(kHeld);
  const absl::Status failed = call.Join();
  EXPECT_NE(failed.message().find("no answer from a:1 within connect_timeout (10 s)"),
            std::string::npos)
      << failed;
}

using HostDrivenRuntimeDeathTest = HostDrivenRuntimeTest;

TEST_F(HostDrivenRuntimeDeathTest, AThreadBesideThoseThatRunTheExecutorsIsRefusedInWords) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto beside_runners = [this](const std::function<void()>& call) {
    StartServer(HostDriven(2));
    std::vector<std::thread> runners;
    for (int i = 0; i < 2; ++i) {
      Executor& executor = server_runtime_->executor(i);
      absl::Notification runs;
      executor.PostFunction([&runs] { runs.Notify(); });
      runners.emplace_back([&executor] { executor.Run(); });
      runs.WaitForNotification();
    }
    call();
  };
  EXPECT_DEATH(beside_runners([this] { server_runtime_->BlockOn(ForEver()); }),
               "Poll\\(\\) of verbena-[01], which another thread drives");
  EXPECT_DEATH(beside_runners([this] { (void)server_->Shutdown(Duration::zero()); }),
               "Poll\\(\\) of verbena-[01], which another thread drives");
}

}  // namespace host_driven_test
}  // namespace verbena::internal
