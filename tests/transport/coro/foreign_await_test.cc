// A Task that awaits a foreign awaitable goes on on its own scheduler, wherever the awaitable
// resumes it.

#include "verbena/transport/coro/task.h"

#include <coroutine>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace foreign_await_test {

static_assert(ForeignAwaitable<std::suspend_always>);
static_assert(!ForeignAwaitable<Task<int>>);
static_assert(!ForeignAwaitable<Task<int>::ScopedAwaiter>);
static_assert(!ForeignAwaitable<Event::Awaiter>);
static_assert(!ForeignAwaitable<Sleep>);
static_assert(!ForeignAwaitable<Yield>);
static_assert(!ForeignAwaitable<TaskScope::Joiner>);

// An awaitable of another library: it hands its handle to whoever resumes it, on any thread.
struct Foreign {
  std::coroutine_handle<>& waiting;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> handle) { waiting = handle; }
  int await_resume() const { return 7; }
};

struct WithOperator {
  std::coroutine_handle<>& waiting;
  Foreign operator co_await() const { return Foreign{waiting}; }
};

class ForeignAwaitTest : public testing::Test {
 protected:
  void ResumeElsewhere() {
    std::thread([this] { waiting_.resume(); }).join();
  }

  ManualScheduler scheduler_;
  std::coroutine_handle<> waiting_;
};

Task<bool> ResumesHere(std::coroutine_handle<>& waiting) {
  const std::thread::id here = std::this_thread::get_id();
  const int result = co_await Foreign{waiting};
  co_return result == 7 && std::this_thread::get_id() == here&& Scheduler::Current() != nullptr;
}

TEST_F(ForeignAwaitTest, ATaskThatAForeignThreadResumesGoesOnOnItsScheduler) {
  Started task(scheduler_, ResumesHere(waiting_));
  ResumeElsewhere();
  EXPECT_FALSE(task.done()) << "it ran on the foreign thread";
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(task.done());
  EXPECT_TRUE(task.result());
}

Task<int> AwaitOperator(std::coroutine_handle<>& waiting) {
  co_return co_await WithOperator{waiting};
}

TEST_F(ForeignAwaitTest, AnOperatorCoAwaitIsHonoured) {
  Started task(scheduler_, AwaitOperator(waiting_));
  ResumeElsewhere();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.result(), 7);
}

struct Maybe {
  bool suspends;
  std::coroutine_handle<>& waiting;
  bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> handle) {
    if (suspends) waiting = handle;
    return suspends;
  }
  int await_resume() const {
    if (suspends) throw std::runtime_error("of the foreign library");
    return 8;
  }
};

Task<int> AwaitMaybe(bool suspends, std::coroutine_handle<>& waiting) {
  co_return co_await Maybe{suspends, waiting};
}

TEST_F(ForeignAwaitTest, AForeignAwaitThatDoesNotSuspendGoesOnAtOnce) {
  EXPECT_EQ(scheduler_.Run(AwaitMaybe(false, waiting_)), 8);
}

TEST_F(ForeignAwaitTest, AForeignExceptionComesOutOfTheAwait) {
  Started task(scheduler_, AwaitMaybe(true, waiting_));
  waiting_.resume();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(task.done());
  EXPECT_THROW((void)task.result(), std::runtime_error);
}

struct Throwing {
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<>) const { throw std::runtime_error("no room"); }
  void await_resume() const {}
};

TEST_F(ForeignAwaitTest, AForeignAwaitThatCannotBeginLeavesNothingBehind) {
  const auto await = []() -> Task<void> { co_await Throwing{}; };
  EXPECT_THROW(scheduler_.Run(await()), std::runtime_error);
  const size_t kept = CountedNews() - CountedDeletes();
  for (int i = 0; i < 5; ++i) EXPECT_THROW(scheduler_.Run(await()), std::runtime_error);
  EXPECT_EQ(CountedNews() - CountedDeletes(), kept);
}

TEST_F(ForeignAwaitTest, AHandleThatIsResumedAfterItsTaskWasDestroyedDoesNothing) {
  Started task(scheduler_, ResumesHere(waiting_));
  task.Abandon();
  ResumeElsewhere();
  scheduler_.RunUntilIdle();
}

TEST_F(ForeignAwaitTest, AHandleThatIsDestroyedAfterItsTaskDoesNothing) {
  Started task(scheduler_, ResumesHere(waiting_));
  task.Abandon();
  waiting_.destroy();
}

TEST_F(ForeignAwaitTest, ATaskMayBeDestroyedBetweenItsForeignResumptionAndItsTurn) {
  Started task(scheduler_, ResumesHere(waiting_));
  ResumeElsewhere();
  task.Abandon();
  scheduler_.RunUntilIdle();
}

}  // namespace foreign_await_test
}  // namespace verbena::internal
