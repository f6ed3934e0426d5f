// Control verbs run on threads of their own, where no connect waits behind a teardown, a
// registration or an address that nobody has. A job and its result are freed once, whether the job
// or its awaiter ends first.

#include "verbena/transport/device/control_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace control_pool_test {

// Made by a job: tells where it is destroyed.
struct Made {
  explicit Made(std::atomic<int>& live) : live(live) { ++live; }
  ~Made() {
    destroyed_on = std::this_thread::get_id();
    --live;
  }
  std::atomic<int>& live;
  static inline std::atomic<std::thread::id> destroyed_on;
};

// Opened once; threads that come before wait.
class Latch {
 public:
  void Open() { promise_.set_value(); }
  void Wait() const { opened_.wait(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
};

class ControlPoolTest : public ::testing::Test {
 protected:
  template <typename Function>
  Task<void> Run(ControlKind kind, const void* order, Function function, absl::Status& result,
                 std::string source = "") {
    result = co_await pool_->Run(kind, order, std::move(function), std::move(source));
    ++ended_;
  }
  template <typename Function>
  Task<void> Finish(ControlKind kind, const void* order, Function function) {
    (void)co_await pool_->Finish(kind, order, std::move(function));
    ++ended_;
  }
  // A job that waits for `latch`, and the proof that it has begun.
  auto Held(const Latch& latch, std::atomic<bool>& begun) {
    return [&latch, &begun] {
      begun = true;
      latch.Wait();
      return absl::OkStatus();
    };
  }
  static void Await(const std::atomic<bool>& flag) {
    while (!flag) std::this_thread::yield();
  }
  void RunUntilEnded(int count) {
    while (ended_ < count) {
      scheduler_.RunUntilIdle();
      std::this_thread::yield();
    }
  }

  int order_a_ = 0, order_b_ = 0;
  std::optional<ControlPool> pool_{std::in_place};
  ManualScheduler scheduler_;
  int ended_ = 0;
};

TEST_F(ControlPoolTest, AJobRunsOnAnotherThreadAndItsResultComesBack) {
  std::thread::id ran_on;
  absl::StatusOr<std::string> result;
  TaskScope scope(scheduler_);
  auto task = [&]() -> Task<void> {
    result = co_await pool_->Run(ControlKind::kConnect, nullptr,
                                 [&ran_on]() -> absl::StatusOr<std::string> {
                                   ran_on = std::this_thread::get_id();
                                   return std::string("made");
                                 });
    ++ended_;
  };
  scope.Spawn(task);
  RunUntilEnded(1);
  EXPECT_EQ(result.value(), "made");
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST_F(ControlPoolTest, WithoutThreadsAJobRunsWhereItIsAwaited) {
  ControlPool pool({.threads = false});
  std::thread::id ran_on;
  auto task = [&]() -> Task<absl::Status> {
    co_return co_await pool.Run(ControlKind::kConnect, nullptr, [&ran_on] {
      ran_on = std::this_thread::get_id();
      return absl::OkStatus();
    });
  };
  EXPECT_TRUE(scheduler_.Run(task()).ok());
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

// A thousand teardowns, the first of which is stuck, and a registration that takes for ever.
TEST_F(ControlPoolTest, AConnectDoesNotWaitForTeardownsOrRegistrations) {
  Latch latch;
  std::atomic<bool> teardown_begun{false}, registration_begun{false};
  absl::Status connected = absl::UnknownError("");
  TaskScope scope(scheduler_);
  scope.Spawn(Finish(ControlKind::kTeardown, nullptr, Held(latch, teardown_begun)));
  scope.Spawn(Finish(ControlKind::kMemory, nullptr, Held(latch, registration_begun)));
  for (int i = 0; i < 1000; ++i) {
    scope.Spawn(Finish(ControlKind::kTeardown, nullptr, [] { return absl::OkStatus(); }));
  }
  scheduler_.RunUntilIdle();
  Await(teardown_begun);
  Await(registration_begun);
  scope.Spawn(Run(ControlKind::kConnect, nullptr, [] { return absl::OkStatus(); }, connected));
  RunUntilEnded(1);
  EXPECT_TRUE(connected.ok());
  EXPECT_EQ(pool_->stats(ControlKind::kTeardown).waiting, 1000u);
  latch.Open();
  RunUntilEnded(1 + 2 + 1000);
}

TEST_F(ControlPoolTest, AnAddressThatNobodyHasHoldsUpOneConnectAndNotTheNext) {
  Latch latch;
  std::atomic<bool> begun{false};
  absl::Status stuck, connected = absl::UnknownError("");
  TaskScope scope(scheduler_);
  scope.Spawn(Run(ControlKind::kConnect, &order_a_, Held(latch, begun), stuck));
  scheduler_.RunUntilIdle();
  Await(begun);
  scope.Spawn(Run(ControlKind::kConnect, &order_b_, [] { return absl::OkStatus(); }, connected));
  RunUntilEnded(1);
  EXPECT_TRUE(connected.ok());
  latch.Open();
  RunUntilEnded(2);
}

TEST_F(ControlPoolTest, AddressesThatNobodyHasHoldUpNoQueuePairsMaking) {
  constexpr int kStuck = 20;  // more than threads that resolve
  Latch latch;
  std::atomic<bool> begun{false};
  std::vector<absl::Status> stuck(kStuck);
  absl::Status made = absl::UnknownError("");
  TaskScope scope(scheduler_);
  for (absl::Status& status : stuck) {
    scope.Spawn(Run(ControlKind::kResolve, nullptr, Held(latch, begun), status));
  }
  scheduler_.RunUntilIdle();
  Await(begun);
  scope.Spawn(Run(ControlKind::kConnect, &order_a_, [] { return absl::OkStatus(); }, made));
  RunUntilEnded(1);
  EXPECT_TRUE(made.ok()) << made;
  latch.Open();
  RunUntilEnded(1 + kStuck);
}

// A source that names such addresses as fast as it can has half of the threads. Another source's
// job begins at once, and its later ones take turns with the first source's.
TEST_F(ControlPoolTest, AddressesThatOneSourceNamesHoldUpNoOtherSource) {
  constexpr int kStuck = 20;
  constexpr int kShare = ControlPool::Options().resolve_threads / 2;
  Latch latch;
  std::atomic<int> running{0}, most{0};
  const auto stick = [&] {
    int now = ++running;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    latch.Wait();
    --running;
    return absl::OkStatus();
  };
  std::vector<absl::Status> stuck(kStuck);
  TaskScope scope(scheduler_);
  for (absl::Status& status : stuck) {
    scope.Spawn(Run(ControlKind::kResolve, nullptr, stick, status, "10.0.0.1"));
  }
  scheduler_.RunUntilIdle();
  while (running < kShare) std::this_thread::yield();
  for (int i = 1; i <= 10; ++i) {
    absl::Status other = absl::UnknownError("");
    scope.Spawn(
        Run(ControlKind::kResolve, nullptr, [] { return absl::OkStatus(); }, other, "10.0.0.2"));
    RunUntilEnded(i);
    EXPECT_TRUE(other.ok()) << other;
  }
  EXPECT_EQ(most, kShare);
  latch.Open();
  RunUntilEnded(10 + kStuck);
  EXPECT_EQ(most, kShare);
}

// Sources that hold every thread are served in turn with one that comes later.
TEST_F(ControlPoolTest, SourcesTakeTurns) {
  pool_.emplace(ControlPool::Options{.resolve_threads = 1});
  Latch latch;
  std::atomic<bool> begun{false};
  std::vector<int> ran;  // on the one thread
  absl::Status held;
  std::vector<absl::Status> results(6);
  TaskScope scope(scheduler_);
  scope.Spawn(Run(ControlKind::kResolve, nullptr, Held(latch, begun), held, "a"));
  scheduler_.RunUntilIdle();
  Await(begun);
  const char* const sources[] = {"a", "a", "a", "a", "b", "b"};
  for (int i = 0; i < 6; ++i) {
    const auto note = [&ran, i] {
      ran.push_back(i);
      return absl::OkStatus();
    };
    scope.Spawn(Run(ControlKind::kResolve, nullptr, note, results[i], sources[i]));
  }
  scheduler_.RunUntilIdle();
  latch.Open();
  RunUntilEnded(7);
  EXPECT_EQ(ran, (std::vector<int>{4, 0, 5, 1, 2, 3}));
}

// Nor does what comes behind it, such as the teardown of its queue pair.
TEST_F(ControlPoolTest, AJobGivenUpInTheQueueDoesNotWaitForAThread) {
  pool_.emplace(ControlPool::Options{.resolve_threads = 1});
  Latch latch;
  std::atomic<bool> begun{false}, ran{false};
  absl::Status held, cancelled;
  TaskScope holder(scheduler_), scope(scheduler_);
  holder.Spawn(Run(ControlKind::kResolve, &order_a_, Held(latch, begun), held));
  scheduler_.RunUntilIdle();
  Await(begun);
  const auto note = [&ran] {
    ran = true;
    return absl::OkStatus();
  };
  scope.Spawn(Run(ControlKind::kResolve, &order_b_, note, cancelled));
  scheduler_.RunUntilIdle();
  holder.Spawn(Finish(ControlKind::kTeardown, &order_b_, [] { return absl::OkStatus(); }));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(pool_->stats(ControlKind::kResolve).waiting, 1u);
  scope.RequestCancel();
  EXPECT_EQ(pool_->stats(ControlKind::kResolve).waiting, 0u);
  EXPECT_EQ(pool_->stats(ControlKind::kResolve).dropped, 1u);
  // The thread is still held when a mutant has left the job in the queue.
  if (pool_->stats(ControlKind::kResolve).waiting == 0) RunUntilEnded(2);
  latch.Open();
  RunUntilEnded(3);
  EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  EXPECT_FALSE(ran);
}

// The second of them does not wait for the thread that the first one wakes.
TEST_F(ControlPoolTest, TwoJobsThatFindOneIdleThreadRunSideBySide) {
  for (int i = 0; i < 20; ++i) {
    pool_.emplace(ControlPool::Options{.connect_threads = 2});
    ended_ = 0;
    Latch latch;
    std::atomic<bool> begun{false};
    absl::Status first, held, beside = absl::UnknownError("");
    TaskScope scope(scheduler_);
    scope.Spawn(Run(ControlKind::kConnect, nullptr, [] { return absl::OkStatus(); }, first));
    RunUntilEnded(1);
    while (pool_->stats(ControlKind::kConnect).idle_threads == 0) std::this_thread::yield();
    scope.Spawn(Run(ControlKind::kConnect, nullptr, Held(latch, begun), held));
    scope.Spawn(Run(ControlKind::kConnect, nullptr, [] { return absl::OkStatus(); }, beside));
    RunUntilEnded(2);
    EXPECT_TRUE(beside.ok()) << beside;
    latch.Open();
    RunUntilEnded(3);
  }
}

// Whatever their kinds: a queue pair is not destroyed while it is being connected.
TEST_F(ControlPoolTest, JobsOfOneOrderRunOneAfterTheOther) {
  std::mutex mutex;
  std::vector<int> ran;
  const auto note = [&](int number) {
    return [&mutex, &ran, number] {
      std::lock_guard<std::mutex> lock(mutex);
      ran.push_back(number);
      return absl::OkStatus();
    };
  };
  Latch latch;
  std::atomic<bool> begun{false};
  absl::Status first;
  TaskScope scope(scheduler_);
  scope.Spawn(Run(ControlKind::kConnect, &order_a_, Held(latch, begun), first));
  const ControlKind kinds[] = {ControlKind::kTeardown, ControlKind::kMemory, ControlKind::kConnect,
                               ControlKind::kResolve};
  for (int i = 0; i < 30; ++i) scope.Spawn(Finish(kinds[i % 4], &order_a_, note(i)));
  scheduler_.RunUntilIdle();
  Await(begun);
  // Others of each kind pass.
  for (ControlKind kind : kinds) scope.Spawn(Finish(kind, &order_b_, note(100)));
  RunUntilEnded(4);
  {
    std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(ran, (std::vector<int>{100, 100, 100, 100}));
    ran.clear();
  }
  latch.Open();
  RunUntilEnded(4 + 31);
  std::vector<int> expected(30);
  for (int i = 0; i < 30; ++i) expected[i] = i;
  EXPECT_EQ(ran, expected);
}

TEST_F(ControlPoolTest, AJobGivenUpBeforeItBeganNeverRuns) {
  Latch latch;
  std::atomic<bool> begun{false};
  std::atomic<int> ran{0};
  const auto count = [&ran] {
    ++ran;
    return absl::OkStatus();
  };
  absl::Status held, cancelled;
  TaskScope holder(scheduler_);
  holder.Spawn(Run(ControlKind::kConnect, &order_a_, Held(latch, begun), held));
  scheduler_.RunUntilIdle();
  Await(begun);
  {
    TaskScope scope(scheduler_);
    scope.Spawn(Run(ControlKind::kConnect, &order_a_, count, cancelled));
    scheduler_.RunUntilIdle();
    scope.RequestCancel(absl::StatusCode::kDeadlineExceeded);
    RunUntilEnded(1);
    EXPECT_TRUE(absl::IsDeadlineExceeded(cancelled)) << cancelled;
  }
  {
    TaskScope scope(scheduler_);
    scope.Spawn(Run(ControlKind::kConnect, &order_a_, count, cancelled));
    scheduler_.RunUntilIdle();
  }  // destroyed while it waits
  holder.Spawn(Finish(ControlKind::kConnect, &order_a_, [] { return absl::OkStatus(); }));
  scheduler_.RunUntilIdle();
  latch.Open();
  RunUntilEnded(3);
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(pool_->stats(ControlKind::kConnect).dropped, 2u);
}

// Its result, too, is destroyed by the pool, before what comes behind it.
TEST_F(ControlPoolTest, WhoeverAwaitsAJobMayBeDestroyedAtAnyTime) {
  std::atomic<int> live{0};
  for (const bool returned : {false, true}) {
    Latch latch;
    std::atomic<bool> begun{false}, over{false};
    std::optional<TaskScope> scope(std::in_place, scheduler_);
    auto task = [&]() -> Task<void> {
      (void)co_await pool_->Run(ControlKind::kConnect, &order_a_,
                                [&]() -> absl::StatusOr<std::unique_ptr<Made>> {
                                  auto made = std::make_unique<Made>(live);
                                  begun = true;
                                  latch.Wait();
                                  return made;
                                });
      ADD_FAILURE() << "resumed";
    };
    scope->Spawn(task);
    // Behind it on the same thread of the pool, so that the result was posted when it runs.
    scope->Spawn(Finish(ControlKind::kConnect, &order_a_, [&over] {
      over = true;
      return absl::OkStatus();
    }));
    scheduler_.RunUntilIdle();
    Await(begun);
    if (returned) {
      latch.Open();
      Await(over);
      scope.reset();
    } else {
      scope.reset();
      latch.Open();
    }
    const int ended = ended_;
    TaskScope behind(scheduler_);
    behind.Spawn(Finish(ControlKind::kTeardown, &order_a_, [&live] {
      EXPECT_EQ(live, 0);
      return absl::OkStatus();
    }));
    RunUntilEnded(ended + 1);
    EXPECT_NE(Made::destroyed_on.load(), std::this_thread::get_id());
  }
}

// Given up at the moment at which the job ends: whichever comes first.
TEST_F(ControlPoolTest, AResultThatNobodyTakesIsDestroyedByThePool) {
  int untaken = 0;
  for (int round = 0; round < 3000; ++round) {
    std::atomic<int> live{0};
    std::atomic<bool> begun{false}, go{false};
    bool taken = false;
    TaskScope scope(scheduler_);
    auto task = [&]() -> Task<void> {
      absl::StatusOr<std::unique_ptr<Made>> made = co_await pool_->Run(
          ControlKind::kConnect, nullptr, [&]() -> absl::StatusOr<std::unique_ptr<Made>> {
            auto result = std::make_unique<Made>(live);
            begun = true;
            while (!go) std::this_thread::yield();
            return result;
          });
      taken = made.ok();
      ++ended_;
    };
    scope.Spawn(task);
    scheduler_.RunUntilIdle();
    Await(begun);
    go = true;
    if (round % 2 == 0) std::this_thread::yield();
    scope.RequestCancel();
    RunUntilEnded(round + 1);
    while (live != 0) std::this_thread::yield();
    if (taken) continue;
    ++untaken;
    ASSERT_NE(Made::destroyed_on.load(), std::this_thread::get_id()) << "round " << round;
  }
  EXPECT_GT(untaken, 0);
}

TEST_F(ControlPoolTest, AJobThatMustRunDoesThoughNobodyWaitsAndThePoolIsDestroyed) {
  Latch latch;
  std::atomic<bool> begun{false};
  std::atomic<int> ran{0};
  absl::Status held;
  {
    TaskScope scope(scheduler_);
    scope.Spawn(Run(ControlKind::kConnect, &order_a_, Held(latch, begun), held));
    for (int i = 0; i < 100; ++i) {
      scope.Spawn(
          Finish(i % 2 == 0 ? ControlKind::kTeardown : ControlKind::kMemory, &order_a_, [&ran] {
            ++ran;
            return absl::OkStatus();
          }));
    }
    scheduler_.RunUntilIdle();
    Await(begun);
  }
  std::thread opener([&latch] { latch.Open(); });
  pool_.reset();
  opener.join();
  EXPECT_EQ(ran, 100);
}

TEST_F(ControlPoolTest, MoreThanMayWaitIsRefusedByNumber) {
  pool_.emplace(ControlPool::Options{.connect_threads = 1, .max_waiting = 2});
  Latch latch;
  std::atomic<bool> begun{false};
  absl::Status results[4];
  TaskScope scope(scheduler_);
  scope.Spawn(Run(ControlKind::kConnect, nullptr, Held(latch, begun), results[0]));
  scheduler_.RunUntilIdle();
  Await(begun);
  for (int i = 1; i < 4; ++i) {
    scope.Spawn(Run(ControlKind::kConnect, nullptr, [] { return absl::OkStatus(); }, results[i]));
  }
  RunUntilEnded(1);
  EXPECT_TRUE(absl::IsResourceExhausted(results[3])) << results[3];
  latch.Open();
  RunUntilEnded(4);
  EXPECT_TRUE(results[1].ok() && results[2].ok());
}

TEST(ControlPoolDeathTest, APoolIsNotDestroyedUnderACoroutineThatAwaitsIt) {
  EXPECT_DEATH(
      {
        ManualScheduler scheduler;
        auto* scope = new TaskScope(scheduler);
        Latch latch;
        ControlPool pool;
        scope->Spawn([&]() -> Task<void> {
          (void)co_await pool.Run(ControlKind::kConnect, nullptr, [&latch] {
            latch.Wait();
            return absl::OkStatus();
          });
        });
        scheduler.RunUntilIdle();
      },
      "1 coroutines still await control jobs");
}

}  // namespace control_pool_test
}  // namespace verbena::internal
