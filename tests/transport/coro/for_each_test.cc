// ForEach runs each item once, never more at a time than it may, and stops at the first failure. It
// ends when all that it started have ended, and leaves nothing behind when it is destroyed.

#include "verbena/transport/coro/combinators.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <ranges>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/generator.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

// ForEach keeps a callable, and with it what it captured, as long as its Tasks run.
// NOLINTBEGIN(cppcoreguidelines-avoid-capturing-lambda-coroutines)

namespace verbena::internal {
namespace for_each_test {

using absl::StatusCode;
using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::chrono_literals;

std::vector<int> Numbers(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

class ForEachTest : public testing::Test {
 protected:
  // Waits for the event, and counts how many wait at once.
  Task<absl::Status> WaitForEvent(int number) {
    started_.push_back(number);
    most_running_ = std::max(most_running_, ++running_);
    absl::Status waited = co_await event_.Wait();
    --running_;
    co_return waited;
  }
  auto Waiting() {
    return [this](int number) -> Task<absl::Status> { co_return co_await WaitForEvent(number); };
  }

  ManualScheduler scheduler_;
  Event event_;
  std::vector<int> started_;
  int running_ = 0;
  int most_running_ = 0;
};

TEST_F(ForEachTest, RunsEachItemOnceInOrder) {
  event_.Set();
  EXPECT_EQ(scheduler_.Run(ForEach(Numbers(5), 1, Waiting())), absl::OkStatus());
  EXPECT_THAT(started_, ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(ForEachTest, AnEmptyRangeIsDoneAtOnce) {
  EXPECT_EQ(scheduler_.Run(ForEach(std::vector<int>(), 4, Waiting())), absl::OkStatus());
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(ForEachTest, RunsAsManyAtOnceAsItMayAndNoMore) {
  Started running(scheduler_, ForEach(Numbers(10), 3, [this](int number) -> Task<absl::Status> {
                    started_.push_back(number);
                    most_running_ = std::max(most_running_, ++running_);
                    absl::Status slept = co_await Sleep(1ms);
                    --running_;
                    co_return slept;
                  }));
  scheduler_.RunUntilIdle();
  EXPECT_THAT(started_, ElementsAre(0, 1, 2));
  scheduler_.AdvanceBy(1s);
  EXPECT_EQ(running.result(), absl::OkStatus());
  EXPECT_EQ(started_.size(), 10u);
  EXPECT_EQ(most_running_, 3);
}

TEST_F(ForEachTest, ConcurrencyBeyondTheItemsRunsAllAtOnce) {
  Started running(scheduler_, ForEach(Numbers(4), 1000, Waiting()));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(running_, 4);
  EXPECT_FALSE(running.done());
  event_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(running.result(), absl::OkStatus());
}

// --- Ranges --------------------------------------------------------------------------------------

TEST_F(ForEachTest, AContainerLivesInTheForEachAndItemsAreReferencesIntoIt) {
  std::vector<std::string> seen;
  const auto note = [&](const std::string& text) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    seen.push_back(text);
    co_return absl::OkStatus();
  };
  auto run =
      ForEach(std::list<std::string>{"a", "b", "a text too long for the string itself"}, 2, note);
  EXPECT_EQ(scheduler_.Run(std::move(run)), absl::OkStatus());
  EXPECT_THAT(seen, ElementsAre("a", "b", "a text too long for the string itself"));
}

TEST_F(ForEachTest, ASpanRefersToItemsThatLiveLonger) {
  std::vector<int> numbers = Numbers(3);
  const auto change = [](int& number) -> Task<absl::Status> {
    number *= 10;
    co_return absl::OkStatus();
  };
  EXPECT_EQ(scheduler_.Run(ForEach(std::span(numbers), 2, change)), absl::OkStatus());
  EXPECT_THAT(numbers, ElementsAre(0, 10, 20));
}

TEST_F(ForEachTest, ItemsThatAViewMakesLiveAsLongAsTheirTasks) {
  std::vector<std::string> seen;
  const auto note = [&](const std::string& text) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    seen.push_back(text);
    co_return absl::OkStatus();
  };
  auto texts = std::views::iota(0, 3) | std::views::transform([](int number) {
                 return std::string(40, static_cast<char>('a' + number));
               });
  EXPECT_EQ(scheduler_.Run(ForEach(texts, 3, note)), absl::OkStatus());
  EXPECT_THAT(seen, ElementsAre(std::string(40, 'a'), std::string(40, 'b'), std::string(40, 'c')));
}

// Each item of such a view overwrites the one before.
TEST_F(ForEachTest, ItemsOfAnInputStreamAreCopied) {
  std::istringstream words("one two three");
  std::vector<std::string> seen;
  const auto note = [&](const std::string& text) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    seen.push_back(text);
    co_return absl::OkStatus();
  };
  auto run = ForEach(std::ranges::istream_view<std::string>(words), 3, note);
  EXPECT_EQ(scheduler_.Run(std::move(run)), absl::OkStatus());
  EXPECT_THAT(seen, ElementsAre("one", "two", "three"));
}

Generator<std::unique_ptr<int>> MoveOnlyItems(int count) {
  for (int i = 0; i < count; ++i) {
    (co_await Sleep(1ms)).IgnoreError();
    co_yield std::make_unique<int>(i);
  }
}

TEST_F(ForEachTest, AGeneratorIsAskedAsPlacesBecomeFree) {
  event_.Set();
  const auto take = [this](std::unique_ptr<int> number) -> Task<absl::Status> {
    co_return co_await WaitForEvent(*number);
  };
  EXPECT_EQ(scheduler_.Run(ForEach(MoveOnlyItems(5), 2, take)), absl::OkStatus());
  EXPECT_THAT(started_, ElementsAre(0, 1, 2, 3, 4));
}

Generator<int> CountAsked(int& asked) {
  for (;;) co_yield asked++;
}

TEST_F(ForEachTest, AGeneratorRunsNoFurtherAheadThanThePlaces) {
  int asked = 0;
  Started running(scheduler_, ForEach(CountAsked(asked), 3, Waiting()));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(running_, 3);
  running.Abandon();
}

// --- Failures ------------------------------------------------------------------------------------

// Item 2 fails; the others wait for the event.
Task<absl::Status> FailAtTwo(Event& event, int number, std::vector<int>& cancelled) {
  if (number == 2) co_return absl::DataLossError("item 2");
  absl::Status waited = co_await event.Wait();
  if (absl::IsCancelled(waited)) cancelled.push_back(number);
  co_return waited;
}

TEST_F(ForEachTest, TheFirstFailureCancelsTheOthersAndStartsNoMore) {
  std::vector<int> cancelled;
  Started running(scheduler_, ForEach(Numbers(100), 4, [&](int number) -> Task<absl::Status> {
                    started_.push_back(number);
                    co_return co_await FailAtTwo(event_, number, cancelled);
                  }));
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(running.done());
  EXPECT_EQ(running.result(), absl::DataLossError("item 2"));
  EXPECT_THAT(started_, ElementsAre(0, 1, 2)) << "item 3 was queued when item 2 failed";
  EXPECT_THAT(cancelled, ElementsAre(0, 1));
}

// Goes on after its cancellation until the event is set.
Task<absl::Status> Stubborn(Event& event) {
  const auto wait = [](Event& waited) -> Task<void> { (co_await waited.Wait()).IgnoreError(); };
  co_await wait(event).In(nullptr);
  co_return absl::InternalError("a later failure");
}

TEST_F(ForEachTest, WaitsForTheOthersAfterAFailureAndKeepsTheFirst) {
  Started running(scheduler_, ForEach(Numbers(2), 2, [&](int number) -> Task<absl::Status> {
                    if (number == 1) co_return absl::NotFoundError("the first failure");
                    co_return co_await Stubborn(event_);
                  }));
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(running.done());
  event_.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(running.done());
  EXPECT_EQ(running.result(), absl::NotFoundError("the first failure"));
}

TEST_F(ForEachTest, AnExceptionIsAFailureAndComesOutAtTheEnd) {
  int ended = 0;
  auto run = ForEach(Numbers(10), 3, [&](int number) -> Task<absl::Status> {
    if (number == 1) throw std::runtime_error("item 1");
    absl::Status waited = co_await event_.Wait();
    ++ended;
    co_return waited;
  });
  EXPECT_THROW((void)scheduler_.Run(std::move(run)), std::runtime_error);
  EXPECT_EQ(ended, 1) << "item 0 was awaited, item 2 was never started";
}

TEST_F(ForEachTest, AStatusBeforeAnExceptionIsTheResult) {
  auto run = ForEach(Numbers(2), 2, [&](int number) -> Task<absl::Status> {
    if (number == 0) co_return absl::NotFoundError("the first failure");
    (co_await event_.Wait()).IgnoreError();
    throw std::runtime_error("a later failure");
  });
  EXPECT_EQ(scheduler_.Run(std::move(run)), absl::NotFoundError("the first failure"));
}

Generator<int> ThrowAfterTwo() {
  co_yield 0;
  co_yield 1;
  (co_await Sleep(1ms)).IgnoreError();
  throw std::runtime_error("out of items");
}

TEST_F(ForEachTest, AnExceptionOfTheGeneratorCancelsTheTasksAndComesOut) {
  EXPECT_THROW((void)scheduler_.Run(ForEach(ThrowAfterTwo(), 3, Waiting())), std::runtime_error);
  EXPECT_EQ(running_, 0);
  EXPECT_THAT(started_, ElementsAre(0, 1));
}

// --- Cancellation --------------------------------------------------------------------------------

TEST_F(ForEachTest, CancellingTheCallerReachesTheTasksAndStartsNoMore) {
  CancelScope scope;
  Started running(scheduler_, ForEach(Numbers(10), 2, Waiting()), &scope);
  scheduler_.RunUntilIdle();
  scope.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(running.done());
  EXPECT_EQ(running.result().code(), StatusCode::kCancelled);
  EXPECT_THAT(started_, ElementsAre(0, 1));
}

TEST_F(ForEachTest, ItemsLeftOverByADeadlineAreNoSuccess) {
  const auto ignore = [](int) -> Task<absl::Status> {
    (co_await Sleep(2ms)).IgnoreError();
    co_return absl::OkStatus();
  };
  EXPECT_EQ(scheduler_.Run(WithDeadline(ForEach(Numbers(10), 2, ignore), 5ms)).code(),
            StatusCode::kDeadlineExceeded);
}

TEST_F(ForEachTest, TasksThatAllSucceedInSpiteOfACancellationAreASuccess) {
  CancelScope scope;
  Started running(scheduler_,
                  ForEach(Numbers(2), 2,
                          [this](int) -> Task<absl::Status> {
                            (co_await event_.Wait()).IgnoreError();
                            co_return absl::OkStatus();
                          }),
                  &scope);
  scheduler_.RunUntilIdle();
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(running.result(), absl::OkStatus());
}

Generator<int> EndsWhenCancelled(Event& event) {
  co_yield 0;
  while ((co_await event.Wait()).ok()) co_yield 1;
}

TEST_F(ForEachTest, AGeneratorThatEndsBecauseItIsCancelledIsNoSuccess) {
  CancelScope scope;
  const auto nothing = [](int) -> Task<absl::Status> { co_return absl::OkStatus(); };
  Started running(scheduler_, ForEach(EndsWhenCancelled(event_), 2, nothing), &scope);
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(running.done());
  scope.Request(StatusCode::kDeadlineExceeded);
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(running.done());
  EXPECT_EQ(running.result().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(ForEachTest, AFailureReachesAGeneratorThatWaits) {
  const auto fail = [](int) -> Task<absl::Status> {
    co_return absl::DataLossError("the first item");
  };
  Started running(scheduler_, ForEach(EndsWhenCancelled(event_), 2, fail));
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(running.done());
  EXPECT_EQ(running.result(), absl::DataLossError("the first item"));
}

// --- Destruction and cost ------------------------------------------------------------------------

TEST_F(ForEachTest, DestroyingItAtAnyStepLeavesNothing) {
  auto held = std::make_shared<int>(0);
  for (int steps = 0; steps < 20; ++steps) {
    Started running(scheduler_, ForEach(Numbers(4), 2, [held](int) -> Task<absl::Status> {
                      const std::shared_ptr<int> mine = held;
                      VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
                      co_return co_await Yield();
                    }));
    for (int step = 0; step < steps; ++step) scheduler_.RunOne();
    running.Abandon();
    EXPECT_EQ(held.use_count(), 1) << steps;
    EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
  }
}

TEST_F(ForEachTest, AllocatesNothingPerItemInSteadyState) {
  const auto step = [](int) -> Task<absl::Status> { co_return co_await Yield(); };
  const auto run = [&](int items) {
    EXPECT_TRUE(scheduler_.Run(ForEach(std::views::iota(0, items), 8, step)).ok());
  };
  run(100);
  const size_t before = CountedNews();
  run(1000);
  EXPECT_EQ(CountedNews(), before);
}

TEST(ForEachDeathTest, ConcurrencyZeroAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto nothing = [](int) -> Task<absl::Status> { co_return absl::OkStatus(); };
  EXPECT_DEATH(
      {
        ManualScheduler scheduler;
        (void)scheduler.Run(ForEach(Numbers(1), 0, nothing));
      },
      "concurrency 0");
}

}  // namespace for_each_test
}  // namespace verbena::internal

// NOLINTEND(cppcoreguidelines-avoid-capturing-lambda-coroutines)
