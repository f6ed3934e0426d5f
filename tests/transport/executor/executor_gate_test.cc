// A function that a thread posts through a gate runs on the executor, or the thread learns that it
// cannot.

#include "verbena/transport/executor/executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

namespace verbena::internal {
namespace executor_gate_test {

TEST(ExecutorGateTest, AFunctionOfAnotherThreadRunsOnTheExecutor) {
  std::unique_ptr<Executor> executor = *Executor::Create();
  ExecutorGate gate(*executor);
  const std::thread::id here = std::this_thread::get_id();
  bool ran = false;
  std::thread([&] {
    EXPECT_TRUE(gate.Post([&] {
      EXPECT_TRUE(gate.open());
      EXPECT_EQ(std::this_thread::get_id(), here);
      ran = true;
    }));
  }).join();
  while (!ran) executor->Poll();
}

TEST(ExecutorGateTest, AFunctionThatRunsAfterTheEndFindsTheGateClosed) {
  std::unique_ptr<Executor> executor = *Executor::Create();
  ExecutorGate gate(*executor);
  bool ran = false;
  EXPECT_TRUE(gate.Post([&] {
    EXPECT_FALSE(gate.open());
    ran = true;
  }));
  gate.Close();
  while (!ran) executor->Poll();
}

TEST(ExecutorGateTest, AClosedGateDestroysTheFunctionAndSaysSo) {
  std::unique_ptr<Executor> executor = *Executor::Create();
  ExecutorGate gate(*executor);
  gate.Close();
  executor.reset();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  EXPECT_FALSE(gate.Post([held = std::move(held)] { ADD_FAILURE() << "there is no executor"; }));
  EXPECT_TRUE(watch.expired());
}

// For ThreadSanitizer: posts of another thread, and the executor's end.
TEST(ExecutorGateTest, AnExecutorMayEndWhileAnotherThreadPosts) {
  for (int round = 0; round < 100; ++round) {
    std::unique_ptr<Executor> executor = *Executor::Create();
    auto gate = std::make_shared<ExecutorGate>(*executor);
    std::thread poster([gate] {
      while (gate->Post([] {})) std::this_thread::yield();
    });
    for (int turn = 0; turn < 10; ++turn) executor->Poll();
    gate->Close();
    executor.reset();
    poster.join();
  }
}

}  // namespace executor_gate_test
}  // namespace verbena::internal
