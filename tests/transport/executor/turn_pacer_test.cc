// A TurnPacer lets few steps pass in each turn, in the order in which they came. A cancelled step
// takes nobody's turn.

#include "verbena/transport/executor/turn_pacer.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {
namespace turn_pacer_test {

using testing::ElementsAre;

class TurnPacerTest : public testing::Test {
 protected:
  Task<void> Step(int number) {
    const absl::Status status = co_await pacer_.Pass();
    if (status.ok()) passed_.push_back(number);
  }
  Task<void> CancelThree(TaskScope& scope, bool& joined) {
    for (int i = 100; i < 103; ++i) scope.Spawn(Step(i));
    (void)co_await Yield();
    scope.RequestCancel();
    co_await scope.Join();
    joined = true;
  }
  void SpawnSteps(int from, int to) {
    for (int i = from; i < to; ++i) Spawn(*executor_, Step(i));
  }
  // How many pass in each turn, until `count` have.
  std::vector<size_t> PollUntilPassed(size_t count) {
    std::vector<size_t> in_turn;
    while (passed_.size() < count) {
      const size_t before = passed_.size();
      executor_->Poll();
      if (passed_.size() > before) in_turn.push_back(passed_.size() - before);
    }
    return in_turn;
  }

  std::unique_ptr<Executor> executor_ = *Executor::Create({.waiter = WaiterKind::kEpoll});
  TurnPacer pacer_{*executor_, 4};
  std::vector<int> passed_;
};

TEST_F(TurnPacerTest, FewStepsPassInEachTurnInTheOrderInWhichTheyCame) {
  SpawnSteps(0, 10);
  EXPECT_THAT(PollUntilPassed(10), ElementsAre(4, 4, 2));
  EXPECT_THAT(passed_, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_F(TurnPacerTest, AQuietPacerLetsATurnsWorthPassAtOnceAgain) {
  SpawnSteps(0, 6);
  EXPECT_THAT(PollUntilPassed(6), ElementsAre(4, 2));
  while (executor_->Poll()) {
  }
  SpawnSteps(6, 11);
  EXPECT_THAT(PollUntilPassed(11), ElementsAre(4, 1));
}

TEST_F(TurnPacerTest, AStepThatIsCancelledWhileItWaitsTakesNobodysTurn) {
  SpawnSteps(0, 4);
  TaskScope scope(*executor_);
  bool joined = false;
  Spawn(*executor_, CancelThree(scope, joined));
  SpawnSteps(4, 9);
  while (!joined || passed_.size() < 9) executor_->Poll();
  EXPECT_THAT(passed_, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

}  // namespace turn_pacer_test
}  // namespace verbena::internal
