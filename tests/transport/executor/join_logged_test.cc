// A shutdown that joins its tasks logs what they threw, and goes on.

#include "verbena/transport/executor/spawn.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/transport/base/captured_log.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace {

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

}  // namespace
}  // namespace verbena::internal
