// A coroutine that hands over to another is followed by it at once: as a part of its resumption, or
// first among those that are ready.

#include <coroutine>
#include <exception>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {
namespace hand_over_test {

// A coroutine that is no Task: only what a scheduler knows of one. Owns its frame.
class Plain {
 public:
  struct promise_type {
    Plain get_return_object() {
      return Plain(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const {}
    void unhandled_exception() const { std::terminate(); }
  };

  explicit Plain(std::coroutine_handle<> coroutine) : coroutine_(coroutine) {
    node_.handle = coroutine;
  }
  Plain(Plain&& other) = delete;
  ~Plain() { coroutine_.destroy(); }

  std::coroutine_handle<> coroutine() const { return coroutine_; }
  ReadyNode& node() { return node_; }

 private:
  std::coroutine_handle<> coroutine_;
  ReadyNode node_;
};

// Suspends, and is followed by the coroutine of `next`.
struct HandTo {
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<>) const { scheduler.HandOver(next.node()); }
  void await_resume() const {}

  Scheduler& scheduler;
  Plain& next;
};

class HandOverTest : public ::testing::Test {
 protected:
  Plain Last(int id) {
    ran_.push_back(id);
    co_return;
  }
  Plain Then(int id, Plain& next) {
    ran_.push_back(id);
    co_await HandTo{scheduler_, next};
    ran_.push_back(-id);
  }

  std::vector<int> ran_;
  ManualScheduler scheduler_;
};

TEST_F(HandOverTest, WhoResumesOneResumesAllThatFollow) {
  Plain ready = Last(4);
  Plain third = Last(3);
  Plain second = Then(2, third);
  Plain first = Then(1, second);
  scheduler_.Ready(ready.node());
  scheduler_.ResumeAll(first.coroutine());
  EXPECT_EQ(ran_, (std::vector{1, 2, 3}));
  EXPECT_EQ(scheduler_.RunUntilIdle(), 1u);
  EXPECT_EQ(ran_, (std::vector{1, 2, 3, 4}));
}

TEST_F(HandOverTest, OneMayHandOverToACoroutineThatHandedOver) {
  Plain last = Last(2);
  Plain first = Then(1, last);
  scheduler_.ResumeAll(first.coroutine());
  Plain again = Then(3, first);
  scheduler_.ResumeAll(again.coroutine());
  EXPECT_EQ(ran_, (std::vector{1, 2, 3, -1}));
}

TEST_F(HandOverTest, OtherwiseItRunsFirstOfThoseThatAreReady) {
  Plain ready = Last(3);
  Plain second = Last(2);
  Plain first = Then(1, second);
  scheduler_.Ready(ready.node());
  first.coroutine().resume();
  EXPECT_EQ(ran_, (std::vector{1}));
  EXPECT_EQ(scheduler_.RunUntilIdle(), 2u);
  EXPECT_EQ(ran_, (std::vector{1, 2, 3}));
}

TEST_F(HandOverTest, ACoroutineThatIsDestroyedFirstNeverRuns) {
  Plain ready = Last(3);
  {
    Plain second = Last(2);
    Plain first = Then(1, second);
    first.coroutine().resume();
  }
  scheduler_.ResumeAll(ready.coroutine());
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
  EXPECT_EQ(ran_, (std::vector{1, 3}));
}

}  // namespace hand_over_test
}  // namespace verbena::internal
