// A server that stood still, or that computes for long, starts no call whose CANCEL has come by
// then, whatever its options.
//
// The peer is one that the test scripts: it sends while a handler holds the server's only thread.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/support/manual_clock.h"
#include "verbena/rpc/task.h"

namespace verbena::internal {
namespace lagging_server_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr char kEcho[] = "verbena.testing.Testing/Echo";

using Numbers = std::vector<uint64_t>;

// Call 0 holds the executor's thread until the test lets it go on; then `stall` has passed. Other
// calls take `handler_takes`. Time is that of `clock`.
class StallingService final : public verbena::testing::Testing::Service {
 public:
  explicit StallingService(ManualClock& clock) : clock_(clock) {}

  Task<absl::Status> Echo(ServerContext&, const verbena::testing::EchoRequest& request,
                          verbena::testing::EchoReply&) override {
    if (request.number() == 0) {
      stands_still.release();
      goes_on.acquire();
      clock_.Advance(stall);
    } else {
      clock_.Advance(handler_takes);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    order_.push_back(request.number());
    co_return absl::OkStatus();
  }
  Numbers order() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return order_;
  }

  std::binary_semaphore stands_still{0};
  std::binary_semaphore goes_on{0};
  Duration stall{};
  Duration handler_takes{};

 private:
  ManualClock& clock_;
  mutable std::mutex mutex_;
  Numbers order_;
};

class LaggingServerTest : public RuntimePair {
 protected:
  // The server's executor stands still when this returns.
  void Start(ServerOptions options) {
    Serve(std::move(options));
    Stall();
  }
  // Serves, and connects the rogue.
  void Serve(ServerOptions options) {
    LinkLimits limits;
    limits.max_links = 16;
    limits.initial_credits = 64;
    server_runtime_ = StartRuntime({.limits = limits, .clock = &clock_});
    ServeWith(service_, std::move(options));
    client_runtime_ = StartRuntime();
    rogue_ = std::make_unique<RoguePeer>(*client_runtime_);
    rogue_->ConnectTo(server_->address());
  }
  void Stall() {
    SendRequests(0, 0);
    service_.stands_still.acquire();
  }
  ~LaggingServerTest() override { rogue_.reset(); }

  void SendRequests(uint64_t from, uint64_t to) { SendRequests(*rogue_, from, to); }
  // In one SEND, each with a deadline. The slot of a call is its number.
  static void SendRequests(RoguePeer& peer, uint64_t from, uint64_t to) {
    std::vector<RogueFrame> frames;
    for (uint64_t number = from; number <= to; ++number) {
      verbena::testing::EchoRequest request;
      request.set_number(number);
      frames.push_back(
          Request(kEcho, static_cast<uint32_t>(number), 1, request.SerializeAsString()));
      frames.back().header.set_deadline(3'600'000'000);
    }
    peer.Send(EncodeSend(kCorrect, frames));
  }
  void SendCancels(uint64_t from, uint64_t to) {
    std::vector<RogueFrame> frames;
    for (uint64_t number = from; number <= to; ++number) {
      RogueFrame& frame = frames.emplace_back();
      frame.header.kind = FrameKind::kCancel;
      frame.header.call_slot = static_cast<uint16_t>(number);
      frame.header.call_generation = 1;
    }
    rogue_->Send(EncodeSend(kCorrect, frames));
  }
  // The server goes on. Waits until so many calls have been given up, and all others have run.
  void GoOn(uint64_t given_up, uint64_t calls) {
    service_.goes_on.release();
    Eventually(
        [&] {
          const ServerStats stats = server_->stats();
          return stats.given_up == given_up && stats.calls == calls && stats.queued == 0;
        },
        "all calls end");
  }

  ManualClock clock_;
  StallingService service_{clock_};
  std::unique_ptr<RoguePeer> rogue_;
};

TEST_F(LaggingServerTest, StartsNoCallWhoseCallerGaveUpWhileItStoodStill) {
  service_.stall = seconds(3);
  Start({});
  SendRequests(1, 50);
  SendRequests(51, 60);
  SendCancels(1, 50);
  GoOn(50, 11);
  EXPECT_THAT(service_.order(), ElementsAre(0, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60));
}

// The CANCELs lie behind more SENDs than one poll takes.
TEST_F(LaggingServerTest, ReadsAllThatHasComeBeforeItStartsAny) {
  service_.stall = seconds(3);
  Start({});
  for (uint64_t number = 1; number <= 40; ++number) SendRequests(number, number);
  SendCancels(1, 40);
  GoOn(40, 1);
  EXPECT_THAT(service_.order(), ElementsAre(0));
}

// The calls of the one with many came last, and are the newest.
TEST_F(LaggingServerTest, AClientWithManyCallsHoldsUpNoOther) {
  service_.stall = seconds(3);
  Serve({});
  RoguePeer other(*client_runtime_);
  other.ConnectTo(server_->address());
  Stall();
  SendRequests(other, 101, 102);
  SendRequests(1, 100);
  GoOn(0, 103);
  const Numbers order = service_.order();
  ASSERT_EQ(order.size(), 103u);
  EXPECT_THAT(Numbers(order.begin() + 1, order.begin() + 5),
              UnorderedElementsAre(99, 100, 101, 102));
}

// The call that held the executor may have ended when the others are read, or not.
TEST_F(LaggingServerTest, CallsThatWaitCountForTheirClient) {
  service_.stall = seconds(3);
  Start({.max_concurrent_calls = 100, .max_calls_per_client = 20});
  SendRequests(1, 50);
  service_.goes_on.release();
  Eventually(
      [&] {
        const ServerStats stats = server_->stats();
        return stats.calls + stats.refusals.client == 51 && stats.queued == 0;
      },
      "all calls end");
  EXPECT_GE(server_->stats().refusals.client, 30u);
}

// One SEND brings all of them, and each takes a millisecond.
TEST_F(LaggingServerTest, LooksAtTheClockWhileOneTurnStartsManyCalls) {
  service_.handler_takes = milliseconds(1);
  Start({});
  SendRequests(1, 100);
  SendCancels(90, 100);
  GoOn(11, 90);
  const Numbers order = service_.order();
  ASSERT_EQ(order.size(), 90u);
  EXPECT_EQ(order[30], 30u) << "until one of the calls looks at the clock";
  EXPECT_EQ(order[31], 89u) << "the newest whose caller waits";
}

TEST_F(LaggingServerTest, AQueueForAdmissionReadsAllThatHasComeToo) {
  service_.stall = seconds(3);
  Start({.admission = {.max_running = 4, .max_queue_age = hours(1)}});
  for (uint64_t number = 1; number <= 40; ++number) SendRequests(number, number);
  SendCancels(1, 40);
  GoOn(40, 1);
  EXPECT_THAT(service_.order(), ElementsAre(0));
}

// Bounds without a queue let calls start as they come, too.
TEST_F(LaggingServerTest, BoundsOfMethodsChangeNothing) {
  service_.stall = seconds(3);
  Start({.admission = {.methods = {{kEcho, {.max_calls = 1000}}}}});
  SendRequests(1, 50);
  SendRequests(51, 52);
  SendCancels(1, 50);
  GoOn(50, 3);
  EXPECT_THAT(service_.order(), ElementsAre(0, 51, 52));
}

}  // namespace lagging_server_test
}  // namespace verbena::internal
