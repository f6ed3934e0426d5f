// The timer of a liveness round starts once, reads the events that no thread reads, and ends with
// the links. Only the test moves the clock. Other tests show how a round checks links
// (idle_link_test, unacknowledged_send_test).

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/device/delegating_device.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/links.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace liveness_round_test {

constexpr Duration kInterval = std::chrono::seconds(1);

// Counts how often somebody looks for asynchronous events.
class LookedAtDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override {
    ++looks;
    return absl::UnavailableError("no asynchronous event waits");
  }
  int looks = 0;
};

class LivenessRoundTest : public testing::Test {
 protected:
  void Pass(Duration time) {
    clock_.Advance(time);
    for (int turn = 0; turn < 10; ++turn) executor_->Poll();
  }

  ManualClock clock_;
  std::unique_ptr<Executor> executor_ = *Executor::Create({.clock = &clock_});
  std::unique_ptr<SoftDevice> soft_ = *SoftDevice::Create({});
  LookedAtDevice device_{*soft_};
  std::unique_ptr<DeviceContext> context_ =
      *DeviceContext::Create(device_, {.event_thread = false});
  LinkTable links_{4};
  LostReceives lost_receives_{device_, links_};
  TaskScope teardowns_{*executor_};
  LivenessRound round_{*executor_, *context_, links_, lost_receives_, teardowns_, kInterval};
};

TEST_F(LivenessRoundTest, RunsOneTimerHoweverOftenItIsStarted) {
  EXPECT_EQ(executor_->NextTimer(), kNever);
  round_.Start();
  const TimePoint due = executor_->NextTimer();
  EXPECT_EQ(due, clock_.Now() + kInterval);
  Pass(kInterval / 2);
  round_.Start();
  EXPECT_EQ(executor_->NextTimer(), due);
  EXPECT_EQ(device_.looks, 0);
}

TEST_F(LivenessRoundTest, LooksForEventsOnceAndEndsWithoutLinks) {
  round_.Start();
  Pass(kInterval);
  EXPECT_EQ(device_.looks, 1);
  EXPECT_EQ(executor_->NextTimer(), kNever);
  Pass(kInterval * 3);
  EXPECT_EQ(device_.looks, 1);
}

TEST_F(LivenessRoundTest, StartsAnewAfterItHasEndedOrWasStopped) {
  round_.Start();
  Pass(kInterval);
  round_.Start();
  EXPECT_EQ(executor_->NextTimer(), clock_.Now() + kInterval);
  round_.Stop();
  EXPECT_EQ(executor_->NextTimer(), kNever);
  Pass(kInterval * 3);
  EXPECT_EQ(device_.looks, 1);
  round_.Start();
  Pass(kInterval);
  EXPECT_EQ(device_.looks, 2);
}

}  // namespace liveness_round_test
}  // namespace verbena::internal
