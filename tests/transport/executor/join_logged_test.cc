// A shutdown that joins its tasks logs what they threw, and goes on.

#include "verbena/transport/executor/spawn.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/manual_clock.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace join_logged_test {

TEST(JoinLoggedTest, ATaskThatThrewIsLoggedAndEndsNobodyElse) {
  const std::unique_ptr<Executor> executor = *Executor::Create({});
  CapturedLog log;
  TaskScope scope(*executor);
  scope.Spawn([]() -> Task<void> {
    throw std::runtime_error("out of cheese");
    co_return;
  });
  scope.Spawn([]() -> Task<void> {
    throw 1;
    co_return;
  });
  bool ended = false;
  bool joined = false;
  Spawn(*executor, [](TaskScope& scope, bool& ended, bool& joined) -> Task<void> {
    try {
      co_await JoinLogged(scope, "the test");
      joined = true;
    } catch (...) {  // NOLINT(bugprone-empty-catch): `joined` tells
    }
    ended = true;
  }(scope, ended, joined));
  while (!ended) executor->Poll();
  EXPECT_TRUE(joined);
  EXPECT_EQ(log.Take(), std::vector<std::string>{"a task of the test threw: out of cheese"});
}

TEST(JoinLoggedTest, AShutdownThatTasksKeepWaitingSaysSo) {
  ManualClock clock;
  const std::unique_ptr<Executor> executor = *Executor::Create({.clock = &clock});
  CapturedLog log;
  Event may_end;
  TaskScope scope(*executor);
  scope.Spawn([&]() -> Task<void> {
    while (!may_end.is_set()) (void)co_await Yield();
  });
  bool joined = false;
  Spawn(*executor, [&]() -> Task<void> {
    scope.RequestCancel();
    co_await JoinLogged(scope, "the test");
    joined = true;
  });
  const std::vector<std::string> line{
      "the test waits for 1 of its tasks to end: a task must end once it is cancelled"};
  for (int round = 0; round < 3; ++round) {
    // Each of some turns: the task was spawned, the report began, its time came.
    for (int turn = 0; turn < 8; ++turn) executor->Poll();
    EXPECT_EQ(log.Take(), round == 0 ? std::vector<std::string>{} : line);
    clock.Advance(std::chrono::seconds(10));
  }
  may_end.Set();
  while (!joined) executor->Poll();
}

}  // namespace join_logged_test
}  // namespace verbena::internal
