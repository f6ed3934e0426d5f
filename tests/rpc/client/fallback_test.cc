// A client with several devices goes over the next one if links over the first open and carry
// nothing: in the same attempt to connect, so that no call fails. It goes back once the first one
// works again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/open_link.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/watched.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/connect/scripted_bootstrap.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/link/black_hole.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/device_scores.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace fallback_test {

using ::testing::Contains;
using ::testing::HasSubstr;

// A soft device that says that it is a NIC on Ethernet.
class RoceLikeDevice final : public DelegatingDevice {
 public:
  explicit RoceLikeDevice(Device& device) : DelegatingDevice(device) {
    told_kind = DeviceKind::kRdma;
  }
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override {
    absl::StatusOr<ibv_port_attr> attributes = DelegatingDevice::QueryPort(port);
    if (attributes.ok()) attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    return attributes;
  }
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    if (!lacks_memory) return DelegatingDevice::RegMr(pd, address, bytes, access);
    return absl::ResourceExhaustedError("no more memory may be pinned");
  }

  std::atomic<bool> lacks_memory{false};
};

// One side's devices: over the first a BlackHole may lie, the second one is TCP. Whatever profile
// the run has: these tests count on a path of 4096 bytes.
struct Devices {
  explicit Devices(const std::string& side)
      : below(*SoftDevice::Create({.name = side + "-roce", .profile = SoftProfile()})),
        roce(*below),
        tcp(*SoftDevice::Create({.name = side + "-tcp",
                                 .shared_memory = false,
                                 .profile = SoftProfile(),
                                 .tcp = TcpWireOptions{.address = "127.0.0.1"}})) {}

  std::unique_ptr<SoftDevice> below;
  RoceLikeDevice roce;
  std::unique_ptr<SoftDevice> tcp;
};

// The options with which a FallbackTest starts.
struct StartOptions {
  bool server_has_roce = true;
  bool server_has_tcp = true;
  bool client_has_tcp = true;
  Duration ping_interval = LinkLimits().ping_interval;  // of the client
};

// A bootstrap whose handshakes wait, while it holds them, until the test lets them go on. Their
// connections to the server are made only then, so that no time limit of the server's runs.
class HeldHandshakes final : public Bootstrap {
 public:
  explicit HeldHandshakes(Bootstrap& below) : below_(below) {}

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override {
    if (holds) co_return std::make_unique<HeldStream>(*this, std::move(target));
    co_return co_await below_.Connect(std::move(target));
  }
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override {
    return below_.Listen(address);
  }

  std::atomic<bool> holds{false};
  Watched<int> begun;  // of those that are held
  Watched<bool> first_goes;
  Watched<bool> others_go;
  std::atomic<int> last_failing{0};  // handshakes from the second to this number fail

 private:
  class HeldStream final : public MessageStream {
   public:
    HeldStream(HeldHandshakes& held, std::string target)
        : held_(held), target_(std::move(target)) {}

    Task<absl::Status> Send(std::string message) override {
      if (stream_ == nullptr) {
        VERBENA_CO_ASSIGN_OR_RETURN(stream_, co_await held_.Open(target_));
      }
      co_return co_await stream_->Send(std::move(message));
    }
    Task<absl::StatusOr<std::string>> Receive() override {
      if (stream_ == nullptr) co_return absl::UnavailableError("as was asked");
      co_return co_await stream_->Receive();
    }
    void Close() override {
      if (stream_ != nullptr) stream_->Close();
    }
    const std::string& peer() const override { return target_; }
    bool same_host() const override { return true; }

   private:
    HeldHandshakes& held_;
    const std::string target_;
    std::unique_ptr<MessageStream> stream_;  // null before the first message
  };

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Open(std::string target) {
    const int number = ++begun;
    VERBENA_CO_RETURN_IF_ERROR(co_await (number == 1 ? first_goes : others_go).Until(true));
    if (number > 1 && number <= last_failing) co_return absl::UnavailableError("as was asked");
    co_return co_await below_.Connect(std::move(target));
  }

  Bootstrap& below_;
};

class FallbackTest : public RpcTest {
 protected:
  static constexpr Duration kMoment = std::chrono::milliseconds(1);
  static constexpr Duration kStep = std::chrono::milliseconds(100);

  FallbackTest() : hole_(*near_.below->context()) {}
  ~FallbackTest() override {
    hole_.Close();
    clock_.Run();
    stub_.reset();
    StopAll();
  }

  void Start(const StartOptions& start = {}) {
    RuntimeOptions options{.use_bootstrap = &handshakes_, .clock = &clock_};
    options.limits.ping_interval = start.ping_interval;
    options.limits.idle_timeout = Duration::zero();
    TestDevice servers{.use = &far_.roce,
                       .also_use = start.server_has_tcp ? far_.tcp.get() : nullptr};
    if (!start.server_has_roce) servers = {.use = far_.tcp.get()};
    server_runtime_ = StartRuntime({.use_bootstrap = &server_bootstrap_}, servers);
    Serve({.address = "server:0"});
    client_runtime_ = StartRuntime(
        std::move(options),
        {.use = &near_.roce, .also_use = start.client_has_tcp ? near_.tcp.get() : nullptr});
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }

  // Makes a call, of which a PING is lost first. Lets the time for the proof pass then.
  absl::Status CallIntoTheHole() {
    const uint64_t before = hole_.swallowed();
    JoinHandle<absl::Status> call = client_runtime_->Spawn(EchoOnce(1, "hello"));
    while (hole_.swallowed() == before) std::this_thread::yield();
    clock_.Advance(*client_runtime_, kProofTime);
    return call.Join();
  }

  // Lets the client's time pass, `step` by step, until `done`.
  void PassUntil(Duration step, const std::function<bool()>& done) {
    const TimePoint limit = Clock::Real().Now() + std::chrono::minutes(1);
    while (!done()) {
      ASSERT_LT(Clock::Real().Now(), limit) << "never came true";
      clock_.Advance(*client_runtime_, step);
      std::this_thread::yield();
    }
  }

  // The devices that the client's links go over.
  std::vector<std::string> InUse() {
    std::vector<std::string> names;
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.endpoint.links > 0) names.push_back(each.device);
    }
    return names;
  }

  // A link over the first device proves itself, and is lost before an answer came over it.
  void LoseALink() {
    hole_.Close();
    PassUntil(kMoment, [this] { return Run(channel_->Connect()).ok(); });
    EXPECT_EQ(InUse(), std::vector<std::string>{"near-roce"});
    hole_.SwallowOver(0);
    JoinHandle<absl::Status> call = client_runtime_->Spawn(EchoOnce(1, "lost"));
    PassUntil(kStep, [this] { return InUse().empty(); });
    const absl::Status lost = call.Join();
    // A PING, or the SEND of the call.
    EXPECT_NE(lost.message().find("has not "), std::string::npos) << lost;
  }

  // Makes as many links over the first device as the device may not lose without being passed over.
  // `end` ends each of them before an answer came over it.
  void EndLinks(const std::function<void()>& end) {
    for (size_t i = 0; i < DeviceScores::kLosses; ++i) {
      PassUntil(kMoment, [this] { return Run(channel_->Connect()).ok(); });
      EXPECT_EQ(InUse(), std::vector<std::string>{"near-roce"});
      end();
      PassUntil(kMoment, [this] { return InUse().empty(); });
    }
  }

  // Whether links to the server go over the first device only if no other one reaches it.
  bool IsFirstPassedOver() {
    Shard& shard = CoreOf(*client_runtime_).shard(0);
    return !DeviceScores::Of(shard).WhyPassedOver(server_->address(), 0).empty();
  }

  VERBENA_CORO_WRAPPER Task<absl::Status> CloseLink(size_t device = 0) {
    return Closing(*client_runtime_, device);
  }
  static Task<absl::Status> Closing(Runtime& runtime, size_t device = 0) {
    co_return CloseLinkOf(runtime, device);
  }
  // From now on links to the server go over the first device only if no other one reaches it.
  void PassFirstOver() {
    DeviceScores& scores = DeviceScores::Of(CoreOf(*client_runtime_).shard(0));
    for (size_t i = 0; i < DeviceScores::kLosses; ++i) {
      scores.NoteLoss(server_->address(), 0, absl::UnavailableError("lost by another executor"),
                      clock_.Now());
    }
    EXPECT_TRUE(IsFirstPassedOver());
  }

  Task<absl::Status> Linger() { co_return (co_await stub_->Linger(testing::Empty())).status(); }

  // Most of the time until the first device is tried again.
  void PassThePause() { clock_.Advance(*client_runtime_, Connection::kFirstReturn * 3 / 4); }

  // The link goes over the other device from now on.
  void FallBack() {
    hole_.SwallowOver(0);
    EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  }

  // Lets the client's time pass until it has tried the first device again. `least` of it passes in
  // one step.
  void AwaitTry(Duration least) {
    const int before = tries_;
    clock_.Advance(*client_runtime_, least);
    PassUntil(std::chrono::seconds(1), [&] { return tries_ > before; });
  }

  // The first device is tried in vain again and again, after pauses of so many seconds, each give
  // or take a fifth. The first pause begins now.
  void ExpectPauses(const std::vector<int>& seconds) {
    refuses_ = true;
    TimePoint from = clock_.Now();
    for (size_t i = 0; i < seconds.size(); ++i) {
      SCOPED_TRACE(i);
      const Duration pause = std::chrono::seconds(seconds[i]);
      AwaitTry(pause * 3 / 4);
      const Duration paused = tried_at_.load() - from;
      EXPECT_GE(paused, pause * 4 / 5);
      EXPECT_LE(paused, pause * 6 / 5);
      from = tried_at_;
    }
    refuses_ = false;
  }

  // The next try of the first device, for which the client waits as long as it ever does, succeeds.
  void Return() {
    hole_.Close();
    AwaitTry(Connection::kLongestReturn * 3 / 4);
    // While the link proves itself, no time passes.
    PassUntil(Duration::zero(), [this] { return PassedOver("near-roce").empty(); });
    EXPECT_TRUE(Serves());
  }

  // Makes a call, so that the server has a turn of its own while the client's time passes.
  bool Serves() { return Run(EchoOnce(1, "hello")).ok(); }

  // SENDs of the client over that device.
  uint64_t SendsOver(const std::string& name) {
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.device == name) return each.endpoint.traffic.sends;
    }
    return 0;
  }

  std::string PassedOver(const std::string& name) {
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.device == name) return each.passed_over;
    }
    return "";
  }

  Devices near_{"near"};
  Devices far_{"far"};
  BlackHole hole_;
  testing::FakeClock clock_;
  LocalNetwork network_;
  LocalBootstrap server_bootstrap_{network_, "server"};
  // The behaviour of the client's bootstrap, and the time of the last request to it.
  std::atomic<bool> throws_{false};
  std::atomic<bool> refuses_{false};
  std::atomic<int> thrown_{0};
  std::atomic<int> tries_{0};
  std::atomic<TimePoint> tried_at_{TimePoint()};
  ScriptedBootstrap bootstrap_{network_, [this](const std::string&) -> Task<absl::Status> {
                                 tried_at_ = clock_.Now();
                                 ++tries_;
                                 if (throws_) {
                                   ++thrown_;
                                   throw std::runtime_error("out of cheese");
                                 }
                                 co_return refuses_ ? absl::UnavailableError("as was asked")
                                                    : absl::OkStatus();
                               }};
  HeldHandshakes handshakes_{bootstrap_};
};

TEST_F(FallbackTest, TheFirstDeviceIsTakenIfItCarriesWhatItIsGiven) {
  Start();
  EXPECT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{"near-roce"});
}

TEST_F(FallbackTest, ACallGoesOverTheNextDeviceInTheSameAttempt) {
  Start();
  hole_.SwallowOver(0);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-tcp"}; });
  EXPECT_NE(PassedOver("near-roce").find("carried nothing"), std::string::npos)
      << PassedOver("near-roce");
}

TEST_F(FallbackTest, ADeviceThatTheServerDoesNotHaveIsNotWaitedFor) {
  CapturedLog log;
  Start({.server_has_roce = false});
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{"near-tcp"});
  for (const std::string& line : log.Take()) {
    EXPECT_EQ(line.find("for a time"), std::string::npos) << line;
  }
}

TEST_F(FallbackTest, ADeviceThatLacksMemoryHereIsTakenOnceItHasSome) {
  near_.roce.lacks_memory = true;
  Start();
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{"near-tcp"});
  near_.roce.lacks_memory = false;
  PassThePause();
  PassUntil(kStep, [this] { return Serves() && InUse() == std::vector<std::string>{"near-roce"}; });
}

TEST_F(FallbackTest, AnMtuThatShrankIsNamed) {
  Start();
  hole_.SwallowOver(1500);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  EXPECT_NE(PassedOver("near-roce").find("smaller MTU"), std::string::npos)
      << PassedOver("near-roce");
}

TEST_F(FallbackTest, NoDeviceIsBlamedIfNoneProvesItself) {
  Start({.server_has_tcp = false});
  hole_.SwallowOver(0);
  const absl::Status failed = CallIntoTheHole();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_EQ(OutcomeOf(failed), Outcome::kNotExecuted);
  EXPECT_NE(failed.message().find("RoCE v2: a link to"), std::string::npos) << failed;
  EXPECT_NE(failed.message().find("tcp: "), std::string::npos) << failed;
  EXPECT_EQ(PassedOver("near-roce"), "");
}

// A path that lets each link prove itself, and then carries nothing.
TEST_F(FallbackTest, ADeviceThatLosesEachLinkBeforeAnAnswerComesLast) {
  Start();
  for (size_t i = 0; i < DeviceScores::kLosses; ++i) LoseALink();
  EXPECT_TRUE(IsFirstPassedOver());
  hole_.Close();
  PassUntil(kMoment, [this] { return Run(channel_->Connect()).ok(); });
  EXPECT_EQ(InUse(), std::vector<std::string>{"near-tcp"});
  EXPECT_NE(PassedOver("near-roce").find("has lost 3 links"), std::string::npos)
      << PassedOver("near-roce");
  EXPECT_EQ(Run(EchoOnce(2, "hello")), absl::OkStatus());
}

// The client has no other device, so links go over this one as before.
TEST_F(FallbackTest, ASoleDeviceThatLosesItsLinksIsLoggedAndTakenAgain) {
  CapturedLog log;
  Start({.client_has_tcp = false});
  for (size_t i = 0; i < DeviceScores::kLosses; ++i) LoseALink();
  hole_.Close();
  PassUntil(kMoment, [this] { return Run(channel_->Connect()).ok(); });
  EXPECT_EQ(InUse(), std::vector<std::string>{"near-roce"});
  EXPECT_EQ(PassedOver("near-roce"), "");
  EXPECT_EQ(Run(EchoOnce(2, "hello")), absl::OkStatus());
  EXPECT_THAT(log.Take(),
              Contains(HasSubstr("links to " + server_->address() +
                                 " go over near-roce only if no other device reaches it: it has "
                                 "lost 3 links")));
}

// The end of a link on purpose says nothing of its path.
TEST_F(FallbackTest, LinksThatTheClientClosesDoNotCountAgainstTheirDevice) {
  Start();
  EndLinks([this] { EXPECT_EQ(Run(CloseLink()), absl::OkStatus()); });
  EXPECT_FALSE(IsFirstPassedOver());
}

// A server that crashes at its start does so.
TEST_F(FallbackTest, LinksOnWhichTheServerHangsUpDoNotCountAgainstTheirDevice) {
  Start();
  EndLinks(
      [this] { EXPECT_EQ(server_runtime_->BlockOn(Closing(*server_runtime_)), absl::OkStatus()); });
  EXPECT_FALSE(IsFirstPassedOver());
}

TEST_F(FallbackTest, LinksOnWhichTheServerSaysGoAwayDoNotCountAgainstTheirDevice) {
  Start();
  EndLinks([this] {
    const std::string address = server_->address();
    (void)server_->Shutdown(std::chrono::seconds(5));
    server_.reset();
    Serve({.address = address});
  });
  EXPECT_FALSE(IsFirstPassedOver());
}

// Otherwise each later connection would try the other device in vain first, for ever.
TEST_F(FallbackTest, ADeviceThatComesLastIsFirstAgainOnceItAnswersInTheOthersPlace) {
  Start({.server_has_tcp = false});
  for (size_t i = 0; i < DeviceScores::kLosses; ++i) LoseALink();
  EXPECT_TRUE(IsFirstPassedOver());
  hole_.Close();
  PassUntil(kMoment, [this] { return Run(channel_->Connect()).ok(); });
  // The other device's link, which the server refused, ends by itself.
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-roce"}; });
  EXPECT_EQ(Run(EchoOnce(2, "hello")), absl::OkStatus());
  EXPECT_TRUE(IsFirstPassedOver()) << "until the link has shown how it ends";
  EXPECT_EQ(Run(CloseLink()), absl::OkStatus());
  EXPECT_FALSE(IsFirstPassedOver());
}

// A link that was open before the losses says nothing of the path as it is now.
TEST_F(FallbackTest, AnAnswerOverAnEarlierLinkBringsNoDeviceBack) {
  Start({.server_has_tcp = false});
  PassUntil(kMoment, [this] { return Run(EchoOnce(1, "hello")).ok(); });
  PassFirstOver();
  EXPECT_EQ(Run(CloseLink()), absl::OkStatus());
  EXPECT_TRUE(IsFirstPassedOver());
}

// Two links that are lost before they are of use are a row only without one of use in between.
TEST_F(FallbackTest, ALinkThatGaveWayWasOfUse) {
  Start();
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
  EXPECT_EQ(Run(CloseLink()), absl::OkStatus());
  hole_.SwallowOver(0);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  EXPECT_NE(PassedOver("near-roce"), "");
  hole_.Close();
  PassThePause();
  PassUntil(kMoment, [this] { return PassedOver("near-roce").empty(); });
  EXPECT_EQ(Run(CloseLink()), absl::OkStatus());
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus()) << "without a pause";
}

TEST_F(FallbackTest, ATryThatThrowsIsNotTheLastOne) {
  Start();
  hole_.SwallowOver(0);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-tcp"}; });
  throws_ = true;
  PassThePause();
  PassUntil(kStep, [this] { return Serves() && thrown_ > 0; });
  throws_ = false;
  hole_.Close();
  PassThePause();
  PassUntil(kStep, [this] { return Serves() && InUse() == std::vector<std::string>{"near-roce"}; });
}

TEST_F(FallbackTest, NewCallsGoBackToTheFirstDeviceAndThoseUnderWayEndWhereTheyAre) {
  CapturedLog log;
  Start({.ping_interval = std::chrono::minutes(30)});
  FallBack();
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-tcp"}; });
  JoinHandle<absl::Status> lingers = client_runtime_->Spawn(Linger());
  EXPECT_EQ(Run(service_.lingering.Until(1)), absl::OkStatus());
  // The device is tried in vain once, and stays passed over.
  const uint64_t swallowed = hole_.swallowed();
  PassThePause();
  PassUntil(kStep, [&] { return Serves() && hole_.swallowed() > swallowed; });
  PassUntil(kStep, [this] { return Serves() && InUse() == std::vector<std::string>{"near-tcp"}; });
  hole_.Close();
  const std::vector<std::string> both = {"near-roce", "near-tcp"};
  PassThePause();
  PassUntil(kStep, [&] { return Serves() && InUse() == both; });
  PassUntil(kMoment, [this] { return Serves() && PassedOver("near-roce").empty(); });
  const uint64_t before = SendsOver("near-roce");
  EXPECT_EQ(Run(EchoOnce(3, "back")), absl::OkStatus());
  EXPECT_GT(SendsOver("near-roce"), before);
  service_.let_go = true;
  EXPECT_EQ(lingers.Join(), absl::OkStatus()) << "it ends over the link that it began on";
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-roce"}; });
  const std::vector<std::string> lines = log.Take();
  const std::string& server = server_->address();
  EXPECT_THAT(lines, Contains(HasSubstr("the link to " + server +
                                        " goes over near-tcp for a time, "
                                        "since near-roce is passed over")));
  EXPECT_THAT(lines,
              Contains(HasSubstr("near-roce is still passed over on the way to " + server + ": ")));
  EXPECT_THAT(lines, Contains(HasSubstr("new calls to " + server + " go over near-roce again")));
}

TEST_F(FallbackTest, TheFirstDeviceIsTriedLessAndLessOftenUntilALinkOverItHasLasted) {
  Start({.ping_interval = std::chrono::minutes(30)});
  FallBack();
  ExpectPauses({10, 10, 10, 10, 10, 10, 20, 40, 80, 160, 300, 300});
  Return();
  // The link ends so soon that the next one would not last, either.
  EXPECT_EQ(Run(CloseLink()), absl::OkStatus());
  FallBack();
  ExpectPauses({300});
  Return();
  clock_.Advance(*client_runtime_, DeviceScores::kWithin);
  EXPECT_EQ(Run(CloseLink()), absl::OkStatus());
  FallBack();
  ExpectPauses({10, 10});
}

TEST_F(FallbackTest, AChannelThatEndsDuringTheSearchLeavesNoLink) {
  Start();
  hole_.SwallowOver(0);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  const uint64_t swallowed = hole_.swallowed();
  PassThePause();
  PassUntil(kStep, [&] { return Serves() && hole_.swallowed() > swallowed; });
  stub_.reset();
  channel_.reset();
  PassUntil(kMoment, [this] { return InUse().empty(); });
}

// The link over the second device is lost while the first one is tried beside it. The try and the
// attempt that a call then begins, over the second device, are both held in their handshakes.
class LostDuringTheSearchTest : public FallbackTest {
 protected:
  // Lets the link be lost, and begins the call.
  void LoseTheLink(CallOptions options = {}) {
    Start();
    PassFirstOver();
    EXPECT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
    EXPECT_EQ(InUse(), std::vector<std::string>{"near-tcp"});
    handshakes_.holds = true;
    PassThePause();
    PassUntil(kStep, [this] { return Serves() && handshakes_.begun.load() == 1; });
    EXPECT_EQ(Run(CloseLink(kTcp)), absl::OkStatus());
    call_ = client_runtime_->Spawn(Echo(std::move(options)));
    EXPECT_EQ(Run(handshakes_.begun.Until(2)), absl::OkStatus());
  }

  // Lets the try succeed: the call ends, though no time passes.
  void LetTheCallReturn() {
    handshakes_.first_goes = true;
    PassUntil(Duration::zero(), [this] { return call_.done(); });
    // In the failing case the call ends with the attempt, or at the time for the next one.
    PassUntil(kStep, [this] { return call_.done(); });
    EXPECT_EQ(call_.Join(), absl::OkStatus());
    EXPECT_FALSE(IsFirstPassedOver());
  }

  // Lets the attempt go on, and waits until it has ended.
  void LetTheAttemptEnd() {
    const absl::StatusOr<uint64_t> seen = Run(channel_->ServersChanged(0));
    ASSERT_TRUE(seen.ok()) << seen.status();
    handshakes_.others_go = true;
    EXPECT_TRUE(Run(channel_->ServersChanged(*seen)).ok());
  }

  Task<absl::Status> Echo(CallOptions options) {
    co_return (co_await stub_->Echo(testing::EchoRequest(), std::move(options))).status();
  }

  // The number of the open link's queue pair; 0 if no link over the device is open.
  uint32_t QpnOver(size_t device) {
    return Run([this, device]() -> Task<uint32_t> {
      const Link* const link = OpenLinkOf(*client_runtime_, device);
      co_return link == nullptr ? 0 : link->qpn();
    }());
  }

  ChannelServer Described() {
    return Run([this]() -> Task<ChannelServer> { co_return channel_->Servers()->front(); }());
  }

  static constexpr size_t kRoce = 0;
  static constexpr size_t kTcp = 1;

  JoinHandle<absl::Status> call_;
};

TEST_F(LostDuringTheSearchTest, ACallTakesTheLinkOverTheFirstDeviceThoughAnAttemptGoesOn) {
  LoseTheLink();
  LetTheCallReturn();
  EXPECT_EQ(handshakes_.begun.load(), 2);
  EXPECT_NE(QpnOver(kRoce), 0u);
}

TEST_F(LostDuringTheSearchTest, AnAttemptThatEndsLaterReplacesNoLinkOverTheFirstDevice) {
  LoseTheLink();
  LetTheCallReturn();
  LetTheAttemptEnd();
  EXPECT_EQ(PassedOver("near-roce"), "");
  ASSERT_NE(QpnOver(kRoce), 0u);
  EXPECT_EQ(QpnOver(kTcp), 0u);
  EXPECT_EQ(Run(EchoOnce(2, "hello")), absl::OkStatus());
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-roce"}; });
}

// Memory that was lent over that link could then no longer be reached.
TEST_F(LostDuringTheSearchTest, ATryThatEndsLaterReplacesNoLinkOverTheFirstDevice) {
  LoseTheLink();
  handshakes_.last_failing = 2;  // so that the attempt goes over the first device in the end
  LetTheAttemptEnd();
  EXPECT_EQ(call_.Join(), absl::OkStatus());
  const uint32_t made = QpnOver(kRoce);
  EXPECT_NE(made, 0u);
  EXPECT_TRUE(IsFirstPassedOver()) << "before the try has ended";
  handshakes_.first_goes = true;
  PassUntil(Duration::zero(), [this] { return !IsFirstPassedOver(); });
  EXPECT_EQ(QpnOver(kRoce), made);
}

TEST_F(LostDuringTheSearchTest, AnAttemptThatFailsLaterCountsForNothing) {
  LoseTheLink();
  LetTheCallReturn();
  handshakes_.last_failing = 3;
  LetTheAttemptEnd();
  const ChannelServer server = Described();
  EXPECT_EQ(server.state, ChannelServer::State::kReady);
  EXPECT_EQ(server.failures, 0u);
  EXPECT_EQ(server.last_error, absl::OkStatus());
  handshakes_.holds = false;
  EXPECT_EQ(Run(CloseLink(kRoce)), absl::OkStatus());
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus()) << "without a pause";
}

TEST_F(LostDuringTheSearchTest, ACallThatWaitsOutAFailureTakesTheLinkOverTheFirstDevice) {
  LoseTheLink({.wait_for_ready = true});
  handshakes_.last_failing = 3;
  LetTheAttemptEnd();
  EXPECT_EQ(Described().failures, 1u);
  EXPECT_FALSE(call_.done());
  LetTheCallReturn();
  EXPECT_EQ(Described().last_error, absl::OkStatus());
  handshakes_.holds = false;
  EXPECT_EQ(Run(CloseLink(kRoce)), absl::OkStatus());
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus()) << "without a pause";
}

}  // namespace fallback_test
}  // namespace verbena::internal
