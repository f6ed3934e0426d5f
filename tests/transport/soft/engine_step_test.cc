// An engine that is stepped by hand serves its wires and its client, and fires each timer once, in
// the order of time and not before it.

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/soft/engine.h"

namespace verbena::internal::soft {
namespace engine_step_test {

class FakeWire final : public Engine::Wire {
 public:
  bool Serve(TimePoint now) override {
    served.push_back(now);
    return busy;
  }
  int fd() const override { return -1; }
  TimePoint next() const override { return kNever; }

  std::vector<TimePoint> served;
  bool busy = false;
};

class FakeClient final : public Engine::Client {
 public:
  bool Serve() override {
    ++served;
    return false;
  }
  bool Tick() override {
    ++ticked;
    return false;
  }
  bool NeedsTick() override { return false; }
  void OnTimer(uint32_t qpn, uint32_t token) override { fired.emplace_back(qpn, token); }

  int served = 0;
  int ticked = 0;
  std::vector<std::pair<uint32_t, uint32_t>> fired;
};

class EngineStepTest : public testing::Test {
 protected:
  static constexpr Duration kSecond = std::chrono::seconds(1);

  EngineStepTest() { EXPECT_TRUE(engine_.Start(client_, {&first_, &second_}).ok()); }

  ManualClock clock_;
  FakeClient client_;
  FakeWire first_;
  FakeWire second_;
  Engine engine_{clock_, /*threaded=*/false, /*tick=*/kSecond};
};

TEST_F(EngineStepTest, EachStepServesAllWiresAndTheClient) {
  EXPECT_FALSE(engine_.Step());
  second_.busy = true;
  EXPECT_TRUE(engine_.Step());
  EXPECT_EQ(first_.served, std::vector<TimePoint>(2, clock_.Now()));
  EXPECT_EQ(second_.served, std::vector<TimePoint>(2, clock_.Now()));
  EXPECT_EQ(client_.served, 2);
  EXPECT_EQ(client_.ticked, 2);
}

TEST_F(EngineStepTest, TimersFireOnceInTheOrderOfTime) {
  engine_.StartTimer(clock_.Now() + 2 * kSecond, 7, 1);
  engine_.StartTimer(clock_.Now() + kSecond, 8, 2);
  EXPECT_FALSE(engine_.Step());
  EXPECT_TRUE(client_.fired.empty());
  clock_.Advance(2 * kSecond);
  EXPECT_TRUE(engine_.Step());
  const std::vector<std::pair<uint32_t, uint32_t>> both = {{8, 2}, {7, 1}};
  EXPECT_EQ(client_.fired, both);
  EXPECT_FALSE(engine_.Step());
  EXPECT_EQ(client_.fired, both);
}

TEST_F(EngineStepTest, ATimerWaitsForItsTime) {
  engine_.StartTimer(clock_.Now() + 2 * kSecond, 7, 1);
  clock_.Advance(kSecond);
  EXPECT_FALSE(engine_.Step());
  clock_.Advance(kSecond);
  EXPECT_TRUE(engine_.Step());
  EXPECT_EQ(client_.fired.size(), 1u);
}

}  // namespace engine_step_test
}  // namespace verbena::internal::soft
