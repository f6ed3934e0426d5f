// A server's shutdown ends on time, whatever handlers and clients do.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/testing_service.h"
#include "tests/rpc/waiting_replies.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/testing/fake_clock.h"

namespace verbena::internal {
namespace shutdown_test {

// Calls wait in front of their handler.
class WaitingInterceptor final : public ServerInterceptor {
 public:
  Task<absl::Status> Intercept(ServerCallView&, ServerNext next) override {
    ++waiting;
    VERBENA_CO_RETURN_IF_ERROR(co_await may_go.Until(true));
    co_return co_await next();
  }

  Watched<int> waiting;
  Watched<bool> may_go;
};

// Its calls end when the server shuts down.
class ListeningService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Wait(ServerContext& context, const testing::WaitRequest&,
                          testing::Empty&) override {
    EXPECT_FALSE(context.shutting_down());
    ++waiting;
    VERBENA_CO_RETURN_IF_ERROR(co_await context.ShutdownBegins());
    EXPECT_TRUE(context.shutting_down());
    EXPECT_FALSE(context.cancelled());
    co_return co_await context.ShutdownBegins();  // which passes at once
  }

  Watched<int> waiting;
};

class ShutdownTest : public RpcTest {
 protected:
  void TearDown() override {
    service_.let_go = true;
    standing_.Run();
    if (thread_.joinable()) thread_.join();
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }

  // Returns at once; ended_ and left_ tell the rest.
  void StartShutdown(Duration grace) {
    thread_ = std::thread([this, grace] {
      left_ = server_->Shutdown(grace);
      ended_ = true;
    });
  }
  void StartLinger(testing::Testing::Stub& stub) {
    client_runtime_->Spawn(Linger(stub));
    EXPECT_EQ(Run(service_.lingering.Until(1)), absl::OkStatus()) << "the handler runs";
  }
  Task<void> Linger(testing::Testing::Stub& stub) {
    testing::Empty reply;
    call_ = co_await stub.Linger(testing::Empty(), reply);
    called_ = true;
  }
  static bool AnyContains(const std::vector<std::string>& lines, const std::string& text) {
    for (const std::string& line : lines) {
      if (line.find(text) != line.npos) return true;
    }
    return false;
  }

  ListeningService listening_;
  // A server's, for tests in which its limits must not pass.
  testing::FakeClock standing_;
  std::thread thread_;
  std::atomic<bool> ended_{false};
  std::vector<RunningHandler> left_;
  absl::Status call_;
  std::atomic<bool> called_{false};
};

TEST_F(ShutdownTest, AHandlerThatIgnoresItsCancellationDoesNotHoldUpShutdown) {
  StartBoth();
  StartLinger(*stub_);
  StartShutdown(Duration::zero());
  Eventually([this] { return ended_.load(); }, "Shutdown returns");
  ASSERT_EQ(left_.size(), 1u);
  EXPECT_EQ(left_[0].method, "verbena.testing.Testing/Linger");
  EXPECT_EQ(left_[0].count, 1u);
  EXPECT_EQ(service_.lingering, 1);
  Eventually([this] { return server_runtime_->endpoint_stats(0).links == 0; },
             "the closed link drains");
  Eventually([this] { return called_.load(); }, "the call ends with its link");
  EXPECT_EQ(call_.code(), absl::StatusCode::kUnavailable) << call_;

  CapturedLog log;
  std::thread destruction([this] { server_.reset(); });
  Eventually([&] { return AnyContains(log.Take(), "1 of verbena.testing.Testing/Linger"); },
             "the destructor names the handler that it waits for");
  EXPECT_EQ(service_.lingering, 1);
  service_.let_go = true;
  destruction.join();
  EXPECT_EQ(service_.lingering, 0);
}

TEST_F(ShutdownTest, AClientThatGivesNoCreditsDoesNotHoldUpShutdown) {
  StartBoth();
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  rogue.Send(EncodeSend(kCorrect, MoreCallsThanCredits()));
  Eventually([&] { return server_runtime_->endpoint_stats(0).traffic.credit_waits > 0; },
             "a response waits for credits");
  StartShutdown(Duration::zero());
  Eventually([this] { return ended_.load(); }, "Shutdown returns");
  EXPECT_TRUE(left_.empty()) << "no handler runs any more";
  EXPECT_TRUE(rogue.IsDropped());
}

// The GOAWAY needs less room than the refusal that goes before it, and the last response leaves
// just as much of its SEND.
TEST_F(ShutdownTest, ARefusalBehindAGoAwayThatWaitsIsSentWhenThereIsRoom) {
  constexpr uint32_t kLast = RoguePeer::kCredits;
  constexpr uint32_t kLingering = kLast + 1;
  constexpr uint32_t kRefused = kLast + 2;
  LinkLimits limits;
  limits.ping_interval = std::chrono::hours(1);
  // A server that shuts down takes requests for a second.
  StartServer({}, {.limits = limits, .clock = &standing_});
  StartClient();
  RoguePeer rogue(*client_runtime_);
  rogue.eager_bytes = limits.eager_bytes;
  rogue.ConnectTo(server_->address());
  testing::InflateRequest inflate;
  constexpr size_t kTagAndLength = 3;  // of the reply's one field
  inflate.set_reply_bytes(MaxBodyBytes(limits.eager_bytes) - FrameBytes(0) - kTagAndLength);
  // Its handler keeps the shutdown from closing the link.
  std::vector<RogueFrame> requests = {Request("verbena.testing.Testing/Linger", kLingering, 0)};
  for (uint32_t slot = 0; slot <= kLast; ++slot) {
    requests.push_back(
        Request("verbena.testing.Testing/Inflate", slot, 0, inflate.SerializeAsString()));
  }
  rogue.Send(EncodeSend(kCorrect, requests));
  Eventually([&] { return server_runtime_->endpoint_stats(0).traffic.credit_waits > 0; },
             "the last response waits");
  StartShutdown(Duration::max());
  Eventually([&] { return server_runtime_->endpoint_stats(0).traffic.credit_waits > 1; },
             "the GOAWAY waits");
  // The server has no such method.
  rogue.Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/None", kRefused, 0)}));
  Eventually([&] { return server_->stats().refused == 1; }, "the request is refused");
  rogue.Send(EncodeSend(Issuing(kLast + 1), {}));
  std::vector<int> answers(kRefused + 1);
  bool told = false;
  const auto receive = [&] {
    for (const RogueFrame& frame : rogue.Receive()) {
      if (frame.header.kind == FrameKind::kGoAway) {
        told = true;
        continue;
      }
      ASSERT_LE(frame.header.call_slot, kRefused);
      ++answers[frame.header.call_slot];
      const bool refused = frame.header.call_slot == kRefused;
      EXPECT_EQ(frame.header.status_code,
                refused ? static_cast<int>(absl::StatusCode::kUnimplemented) : 0);
      if (refused) {
        EXPECT_EQ(frame.header.outcome, static_cast<int>(Outcome::kNotExecuted));
      }
    }
  };
  while (answers[kLast] == 0 && !HasFailure()) receive();
  rogue.Send(EncodeSend(Issuing(2 * kLast), {}));
  while ((answers[kRefused] == 0 || !told) && !HasFailure()) receive();
  for (uint32_t slot = 0; slot <= kLast; ++slot) EXPECT_EQ(answers[slot], 1) << slot;
  EXPECT_EQ(answers[kRefused], 1);
  service_.let_go = true;
  standing_.Run();
  Eventually([this] { return ended_.load(); }, "Shutdown returns");
}

// A client may not have heard of the shutdown yet.
TEST_F(ShutdownTest, CallsThatCrossTheGoAwayRunWithinTheGrace) {
  StartServer({}, {.clock = &standing_});
  StartClient();
  auto rogue = std::make_unique<RoguePeer>(*client_runtime_);
  rogue->ConnectTo(server_->address());
  StartShutdown(std::chrono::seconds(20));
  bool told = false;
  int answers = 0;
  const auto receive = [&] {
    for (const RogueFrame& frame : rogue->Receive()) {
      if (frame.header.kind == FrameKind::kGoAway) told = true;
      if (frame.header.kind != FrameKind::kResponse) continue;
      EXPECT_EQ(frame.header.status_code, 0);
      ++answers;
    }
  };
  while (!told && !HasFailure()) receive();
  rogue->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 0)}));
  while (answers == 0 && !HasFailure()) receive();
  EXPECT_EQ(service_.echoes(), 1u);
  rogue.reset();
  standing_.Run();
  Eventually([this] { return ended_.load(); }, "Shutdown returns");
}

// A grace as long as can be neither overflows nor makes one executor wait for another's handlers.
TEST_F(ShutdownTest, AllExecutorsShutDownAtOnce) {
  StartServer({}, {.executors = 2});
  client_runtime_ = StartRuntime();
  Channel first(*client_runtime_, server_->address(), {.server_executor = 0});
  Channel second(*client_runtime_, server_->address(), {.server_executor = 1});
  testing::Testing::Stub stub(first);
  ASSERT_EQ(Run(first.Connect()), absl::OkStatus());
  ASSERT_EQ(Run(second.Connect()), absl::OkStatus());
  ASSERT_EQ(client_runtime_->endpoint_stats(0).links, 2u);
  StartLinger(stub);
  StartShutdown(Duration::max());
  Eventually([this] { return client_runtime_->endpoint_stats(0).links == 1; },
             "the executor without calls lets its client go");
  EXPECT_EQ(service_.lingering, 1);
  EXPECT_FALSE(ended_);
  service_.let_go = true;
  Eventually([this] { return ended_.load(); }, "Shutdown returns");
  EXPECT_TRUE(left_.empty());
  Eventually([this] { return called_.load(); }, "the call ends");
  EXPECT_EQ(call_, absl::OkStatus()) << "it had all the time that there is";
}

TEST_F(ShutdownTest, ACallThatWaitsInFrontOfItsHandlerIsRefused) {
  const auto interceptor = std::make_shared<WaitingInterceptor>();
  // The link must not be closed before the refusal has left.
  StartServer({.interceptors = {interceptor}}, {.clock = &standing_});
  StartClient();
  JoinHandle<absl::Status> call = client_runtime_->Spawn(EchoOnce(1, "x"));
  EXPECT_EQ(Run(interceptor->waiting.Until(1)), absl::OkStatus());
  StartShutdown(Duration::zero());
  const absl::Status status = call.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(service_.echoes(), 0u);
  standing_.Run();
  Eventually([this] { return ended_.load(); }, "Shutdown returns");
  EXPECT_TRUE(left_.empty());
}

TEST_F(ShutdownTest, HandlersThatListenEndWithinTheGrace) {
  server_runtime_ = StartRuntime({.executors = 2});
  ServeWith(listening_);
  client_runtime_ = StartRuntime();
  Channel first(*client_runtime_, server_->address(), {.server_executor = 0});
  Channel second(*client_runtime_, server_->address(), {.server_executor = 1});
  const auto wait = [](Channel& channel) -> Task<absl::Status> {
    testing::Testing::Stub stub(channel);
    co_return (co_await stub.Wait(testing::WaitRequest())).status();
  };
  JoinHandle<absl::Status> calls[] = {client_runtime_->Spawn(wait(first)),
                                      client_runtime_->Spawn(wait(second))};
  EXPECT_EQ(Run(listening_.waiting.Until(2)), absl::OkStatus());
  EXPECT_TRUE(server_->Shutdown(std::chrono::seconds(20)).empty());
  for (JoinHandle<absl::Status>& call : calls) {
    EXPECT_EQ(call.Join(), absl::OkStatus()) << "it is not cancelled";
  }
}

TEST_F(ShutdownTest, ASecondShutdownWaitsForTheHandlersThatWereLeft) {
  StartBoth();
  StartLinger(*stub_);
  EXPECT_EQ(server_->Shutdown(Duration::zero()).size(), 1u);
  StartShutdown(Duration::max());
  service_.let_go = true;
  Eventually([this] { return ended_.load(); }, "the second Shutdown returns");
  EXPECT_TRUE(left_.empty());
}

}  // namespace shutdown_test
}  // namespace verbena::internal
