// A generator gives its items in order, one for each Next(), inherits the consumer's context, hands
// on its exception, and leaves nothing behind at whichever step it or its consumer is destroyed.

#include "verbena/transport/coro/generator.h"

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace generator_test {

using absl::StatusCode;
using testing::ElementsAre;
using namespace std::chrono_literals;

Generator<int> Count(int items) {
  for (int i = 0; i < items; ++i) co_yield i;
}

Task<std::vector<int>> Collect(Generator<int> items) {
  std::vector<int> collected;
  while (std::optional<int> item = co_await items.Next()) collected.push_back(*item);
  co_return collected;
}

// Asks for one item of a generator that somebody else owns.
template <typename T>
Task<std::optional<T>> AskOnce(Generator<T>& items) {
  co_return co_await items.Next();
}

class GeneratorTest : public testing::Test {
 protected:
  ManualScheduler scheduler_;
  Event event_;
};

TEST_F(GeneratorTest, GivesItsItemsInOrder) {
  EXPECT_THAT(scheduler_.Run(Collect(Count(3))), ElementsAre(0, 1, 2));
  EXPECT_THAT(scheduler_.Run(Collect(Count(0))), ElementsAre());
}

Generator<int> NoteBeginning(bool& began) {
  began = true;
  co_yield 7;
}

TEST_F(GeneratorTest, BeginsWithTheFirstNext) {
  bool began = false;
  Generator<int> items = NoteBeginning(began);
  EXPECT_FALSE(began);
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), 7);
  EXPECT_TRUE(began);
}

TEST_F(GeneratorTest, GivesNothingAgainAndAgainAfterItsEnd) {
  Generator<int> items = Count(1);
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), 0);
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), std::nullopt);
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), std::nullopt);
  EXPECT_TRUE(static_cast<bool>(items));
}

Generator<std::unique_ptr<int>> MoveOnlyItems() {
  co_yield std::make_unique<int>(1);
  auto named = std::make_unique<int>(2);
  co_yield std::move(named);
}

TEST_F(GeneratorTest, ItemsMayBeMoveOnly) {
  Generator<std::unique_ptr<int>> items = MoveOnlyItems();
  EXPECT_EQ(**scheduler_.Run(AskOnce(items)), 1);
  EXPECT_EQ(**scheduler_.Run(AskOnce(items)), 2);
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), std::nullopt);
}

Generator<std::string> CopyOfALocal() {
  const std::string text = "kept";
  co_yield text;
  co_yield text;
}

TEST_F(GeneratorTest, AYieldedVariableKeepsItsValue) {
  Generator<std::string> items = CopyOfALocal();
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), "kept");
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), "kept");
}

Task<int> Double(int number) {
  (co_await Sleep(1ms)).IgnoreError();
  co_return 2 * number;
}
Generator<int> AwaitsBetween() {
  for (int i = 1; i <= 3; ++i) {
    co_yield co_await Double(i);
    (co_await Yield()).IgnoreError();
  }
}

TEST_F(GeneratorTest, AwaitsBetweenItsItems) {
  EXPECT_THAT(scheduler_.Run(Collect(AwaitsBetween())), ElementsAre(2, 4, 6));
}

Generator<int> Squares(Generator<int> numbers) {
  while (std::optional<int> number = co_await numbers.Next()) co_yield *number** number;
}

TEST_F(GeneratorTest, OneMayConsumeAnother) {
  EXPECT_THAT(scheduler_.Run(Collect(Squares(Count(4)))), ElementsAre(0, 1, 4, 9));
}

Task<int64_t> Sum(Generator<int> items) {
  int64_t sum = 0;
  while (std::optional<int> item = co_await items.Next()) sum += *item;
  co_return sum;
}

TEST_F(GeneratorTest, AMillionItemsUseNoStack) {
  EXPECT_EQ(scheduler_.Run(Sum(Count(1'000'000))), 499'999'500'000);
}

TEST_F(GeneratorTest, AllocatesNothingInSteadyState) {
  scheduler_.Run(Sum(Count(10)));
  const size_t before = CountedNews();
  for (int i = 0; i < 10; ++i) scheduler_.Run(Sum(Count(10)));
  EXPECT_EQ(CountedNews(), before);
}

// --- Exceptions ----------------------------------------------------------------------------------

Generator<int> ThrowAfterOne() {
  co_yield 1;
  throw std::runtime_error("out of items");
}

TEST_F(GeneratorTest, AnExceptionComesOutOfNextAndEndsIt) {
  Generator<int> items = ThrowAfterOne();
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), 1);
  EXPECT_THROW((void)scheduler_.Run(AskOnce(items)), std::runtime_error);
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), std::nullopt);
}

// --- Context -------------------------------------------------------------------------------------

Generator<absl::Status> Waits(Event& event) {
  for (;;) co_yield co_await event.Wait();
}

TEST_F(GeneratorTest, ACancellationOfTheConsumerReachesTheAwaitInside) {
  Generator<absl::Status> items = Waits(event_);
  CancelScope scope;
  Started asking(scheduler_, AskOnce(items), &scope);
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(asking.done());
  scope.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(asking.done());
  EXPECT_EQ(asking.result()->code(), StatusCode::kCancelled);
}

TEST_F(GeneratorTest, ADeadlineOfTheConsumerReachesTheAwaitInside) {
  const auto ask = [](Generator<absl::Status>& items) -> Task<absl::Status> {
    co_return *co_await items.Next();
  };
  Generator<absl::Status> items = Waits(event_);
  EXPECT_EQ(scheduler_.Run(WithDeadline(ask(items), 5ms)).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(GeneratorTest, EachNextRunsInTheScopeOfItsOwnConsumer) {
  Generator<absl::Status> items = Waits(event_);
  CancelScope first;
  Started asking(scheduler_, AskOnce(items), &first);
  first.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(asking.result()->code(), StatusCode::kCancelled);

  CancelScope second;
  Started asking_again(scheduler_, AskOnce(items), &second);
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(asking_again.done()) << "it runs in the scope of the first consumer";
  second.Request(StatusCode::kDeadlineExceeded);
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(asking_again.done());
  EXPECT_EQ(asking_again.result()->code(), StatusCode::kDeadlineExceeded);
}

Generator<TaskContext> Contexts() {
  for (;;) co_yield co_await CurrentContext();
}

TEST_F(GeneratorTest, RunsOnTheConsumersScheduler) {
  Generator<TaskContext> items = Contexts();
  CancelScope scope;
  Started asking(scheduler_, AskOnce(items), &scope);
  const TaskContext context = *asking.result();
  EXPECT_EQ(context.scheduler, &scheduler_);
  EXPECT_EQ(context.cancel, &scope);
}

// --- Destruction ---------------------------------------------------------------------------------

Generator<int> Hold(Event& event, std::shared_ptr<int> held) {
  co_yield 1;
  (co_await event.Wait()).IgnoreError();
  co_yield 2;
}

TEST_F(GeneratorTest, DestroyingItAtAnyItemDestroysItsFrame) {
  auto held = std::make_shared<int>(0);
  event_.Set();
  for (int asked = 0; asked <= 3; ++asked) {
    Generator<int> items = Hold(event_, held);
    for (int i = 0; i < asked; ++i) scheduler_.Run(AskOnce(items));
    EXPECT_EQ(held.use_count(), 2);
    items = Generator<int>();
    EXPECT_EQ(held.use_count(), 1) << asked;
  }
}

TEST_F(GeneratorTest, AbandoningTheConsumerThatWaitsAbandonsIt) {
  auto held = std::make_shared<int>(0);
  Generator<int> items = Hold(event_, held);
  scheduler_.Run(AskOnce(items));
  {
    CancelScope scope;
    Started asking(scheduler_, AskOnce(items), &scope);
    scheduler_.RunUntilIdle();
    asking.Abandon();
  }
  EXPECT_FALSE(static_cast<bool>(items));
  EXPECT_EQ(held.use_count(), 1);
  event_.Set();
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(GeneratorTest, AbandoningTheConsumerWhenTheAwaitInsideIsOverAbandonsIt) {
  auto held = std::make_shared<int>(0);
  Generator<int> items = Hold(event_, held);
  scheduler_.Run(AskOnce(items));
  Started asking(scheduler_, AskOnce(items));
  event_.Set();  // the generator is queued, and has not run
  asking.Abandon();
  EXPECT_FALSE(static_cast<bool>(items));
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(GeneratorTest, AbandoningAConsumerThatOwnsItLeavesNothing) {
  auto held = std::make_shared<int>(0);
  Started collecting(scheduler_, Collect(Hold(event_, held)));
  EXPECT_EQ(held.use_count(), 2);
  collecting.Abandon();
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(GeneratorTest, MovesBetweenItems) {
  Generator<int> items = Count(2);
  EXPECT_EQ(scheduler_.Run(AskOnce(items)), 0);
  Generator<int> moved = std::move(items);
  EXPECT_FALSE(static_cast<bool>(items));  // NOLINT(bugprone-use-after-move): empty, as it says
  EXPECT_EQ(scheduler_.Run(AskOnce(moved)), 1);
}

// --- Misuse --------------------------------------------------------------------------------------

class GeneratorDeathTest : public GeneratorTest {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(GeneratorDeathTest, AskingAnEmptyOneAborts) {
  Generator<int> empty;
  EXPECT_DEATH((void)scheduler_.Run(AskOnce(empty)), "empty, moved from or abandoned");
}

TEST_F(GeneratorDeathTest, TwoThatAskAtOnceAbort) {
  Generator<absl::Status> items = Waits(event_);
  Started first(scheduler_, AskOnce(items));
  EXPECT_DEATH(Started(scheduler_, AskOnce(items)), "two coroutines wait");
}

TEST_F(GeneratorDeathTest, DestroyingItWhileSomebodyWaitsAborts) {
  auto items = std::make_unique<Generator<absl::Status>>(Waits(event_));
  Started asking(scheduler_, AskOnce(*items));
  EXPECT_DEATH(items.reset(), "while somebody waits in Next");
  asking.Abandon();
}

TEST_F(GeneratorDeathTest, AskingOnTwoExecutorsAborts) {
  Generator<int> items = Count(2);
  scheduler_.Run(AskOnce(items));
  ManualScheduler other;
  EXPECT_DEATH((void)other.Run(AskOnce(items)), "asked on two executors");
}

}  // namespace generator_test
}  // namespace verbena::internal
