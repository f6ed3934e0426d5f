// What serves the coroutines of one executor aborts the process when a second one uses it, and says
// what was misused.

#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace one_executor_test {

Task<absl::Status> Lock(Mutex& mutex) { co_return (co_await mutex.Lock()).status(); }
Task<absl::Status> Acquire(Semaphore& semaphore) { co_return co_await semaphore.Acquire(); }
Task<absl::Status> Push(Queue<int>& queue) { co_return co_await queue.Push(1); }
Task<absl::Status> Pop(Queue<int>& queue) { co_return (co_await queue.Pop()).status(); }

// Runs `function` inside the loop of a scheduler.
template <typename Function>
Task<void> Inside(Function function) {
  function();
  co_return;
}
// Runs `function` on a thread that is inside no loop, while this coroutine's loop runs.
template <typename Function>
Task<void> Beside(Function function) {
  std::thread(function).join();
  co_return;
}

class OneExecutorDeathTest : public testing::Test {
 protected:
  ManualScheduler home_;
  ManualScheduler other_;
};

TEST_F(OneExecutorDeathTest, AwaitsOnTwoExecutorsAbort) {
  Mutex mutex;
  EXPECT_TRUE(home_.Run(Lock(mutex)).ok());
  EXPECT_DEATH((void)other_.Run(Lock(mutex)), "a Semaphore or Mutex is awaited on two executors");
  Semaphore semaphore(1);
  EXPECT_TRUE(home_.Run(Acquire(semaphore)).ok());
  EXPECT_DEATH((void)other_.Run(Acquire(semaphore)), "is awaited on two executors");
  Event event;
  event.Set();
  EXPECT_TRUE(home_.Run(WaitFor(event)).ok());
  EXPECT_DEATH((void)other_.Run(WaitFor(event)), "an Event is awaited on two executors");
  Queue<int> queue(2);
  EXPECT_TRUE(home_.Run(Push(queue)).ok());
  EXPECT_DEATH((void)other_.Run(Pop(queue)), "a Queue is awaited on two executors");
  EXPECT_DEATH((void)other_.Run(Push(queue)), "a Queue is awaited on two executors");
}

TEST(OneExecutorTest, AnObjectServesTheNextExecutorOnceItsFirstIsGone) {
  Mutex mutex;
  std::optional<ManualScheduler> first(std::in_place);
  EXPECT_TRUE(first->Run(Lock(mutex)).ok());
  ManualScheduler second;
  first.reset();
  EXPECT_TRUE(second.Run(Lock(mutex)).ok());
}

TEST_F(OneExecutorDeathTest, WakingACoroutineOfAnotherExecutorAborts) {
  Event event;
  Started waiting(home_, WaitFor(event));
  EXPECT_DEATH(other_.Run(Inside([&] { event.Set(); })),
               "an Event (is used on two executors|wakes a coroutine of another executor)");
  Semaphore none(0);
  Started acquiring(home_, Acquire(none));
  EXPECT_DEATH(other_.Run(Inside([&] { none.Release(); })), "(two executors|another executor)");
  Queue<int> queue(1);
  Started popping(home_, Pop(queue));
  EXPECT_DEATH(other_.Run(Inside([&] { queue.TryPush(1); })), "(two executors|another executor)");
  EXPECT_DEATH(other_.Run(Inside([&] { queue.Close(); })), "(two executors|another executor)");
  event.Set();
  none.Release();
  queue.Close();
  home_.RunUntilIdle();
}

TEST_F(OneExecutorDeathTest, WakingFromAThreadWithoutALoopAbortsWhileTheLoopRuns) {
  Event event;
  Started waiting(home_, WaitFor(event));
  EXPECT_DEATH(home_.Run(Beside([&] { event.Set(); })),
               "an Event wakes a coroutine of another executor");
  event.Set();  // nobody is inside the loop: this thread may be its thread
  home_.RunUntilIdle();
  EXPECT_TRUE(waiting.done());
}

TEST_F(OneExecutorDeathTest, CancellingACoroutineOfAnotherExecutorAborts) {
  CancelScope scope;
  Event event;
  Started waiting(home_, WaitFor(event), &scope);
  EXPECT_DEATH(other_.Run(Inside([&] { scope.Request(); })),
               "a CancelScope was requested on another thread");
  EXPECT_DEATH(home_.Run(Beside([&] { scope.Request(); })),
               "a CancelScope was requested on another thread");
  scope.Request();
  home_.RunUntilIdle();
}

TEST_F(OneExecutorDeathTest, ATaskScopeThatAnotherExecutorUsesAborts) {
  Event event;
  TaskScope scope(home_);
  scope.Spawn([&]() -> Task<void> { (void)co_await event.Wait(); });
  home_.RunUntilIdle();
  const auto join = [&]() -> Task<void> { co_await scope.Join(); };
  EXPECT_DEATH(other_.Run(join()), "a TaskScope is joined by a coroutine of another executor");
  EXPECT_DEATH(other_.Run(Inside([&] { scope.RequestCancel(); })),
               "a TaskScope was cancelled on another thread");
  EXPECT_DEATH(other_.Run(Inside([&] { scope.Spawn([]() -> Task<void> { co_return; }); })),
               "a TaskScope spawns on another thread");
  scope.RequestCancel();
  home_.RunUntilIdle();
}

}  // namespace one_executor_test
}  // namespace verbena::internal
