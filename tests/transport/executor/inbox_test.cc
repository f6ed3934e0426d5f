// Items of each producer reach the consumer in order. No wake-up is lost, and only the first push
// to a sleeping consumer makes a system call.

#include "verbena/transport/executor/inbox.h"

#include <poll.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {
namespace inbox_test {

using testing::ElementsAre;

class NumberItem final : public InboxItem {
 public:
  explicit NumberItem(int given) : number(given) {}
  void Run() override {}
  const int number;
};

bool Readable(const Inbox& inbox, int timeout_ms) {
  pollfd readable = {.fd = inbox.fd(), .events = POLLIN, .revents = 0};
  return poll(&readable, 1, timeout_ms) == 1;
}

class InboxTest : public testing::Test {
 protected:
  std::vector<int> PopAll() {
    std::vector<int> numbers;
    while (InboxItem* item = inbox_->Pop()) {
      numbers.push_back(static_cast<NumberItem*>(item)->number);
    }
    return numbers;
  }

  NumberItem one_{1}, two_{2}, three_{3};
  std::unique_ptr<Inbox> inbox_ = *Inbox::Create();
};

TEST_F(InboxTest, ItemsComeInTheOrderTheyWerePushed) {
  inbox_->Push(one_);
  inbox_->Push(two_);
  EXPECT_EQ(inbox_->Pop(), &one_);
  inbox_->Push(three_);
  EXPECT_THAT(PopAll(), ElementsAre(2, 3));
  EXPECT_TRUE(inbox_->empty());
}

TEST_F(InboxTest, APushToAnAwakeConsumerMakesNoSystemCall) {
  inbox_->Push(one_);
  EXPECT_FALSE(Readable(*inbox_, 0));
  PopAll();
}

TEST_F(InboxTest, OnlyTheFirstPushToASleeperWakesIt) {
  ASSERT_TRUE(inbox_->BeginSleep());
  inbox_->Push(one_);
  inbox_->Push(two_);
  EXPECT_TRUE(Readable(*inbox_, 0));
  inbox_->OnReadable();
  EXPECT_FALSE(Readable(*inbox_, 0));
  inbox_->EndSleep();
  EXPECT_THAT(PopAll(), ElementsAre(1, 2));
}

TEST_F(InboxTest, AConsumerWithItemsMustNotSleep) {
  inbox_->Push(one_);
  EXPECT_FALSE(inbox_->BeginSleep());
  inbox_->Push(two_);
  EXPECT_EQ(inbox_->Pop(), &one_);
  // The second was taken from the shared list together with the first.
  EXPECT_FALSE(inbox_->BeginSleep());
  EXPECT_THAT(PopAll(), ElementsAre(2));
  EXPECT_TRUE(inbox_->BeginSleep());
  inbox_->EndSleep();
}

// A consumer that something else wakes may sleep again before it reads the eventfd. This costs one
// useless wake-up, and loses no later one.
TEST_F(InboxTest, AWriteThatWasNotReadYetDoesNotHideTheNext) {
  ASSERT_TRUE(inbox_->BeginSleep());
  inbox_->Push(one_);
  inbox_->EndSleep();
  EXPECT_THAT(PopAll(), ElementsAre(1));
  ASSERT_TRUE(inbox_->BeginSleep());
  EXPECT_TRUE(Readable(*inbox_, 0));
  inbox_->OnReadable();
  EXPECT_FALSE(Readable(*inbox_, 0));
  inbox_->Push(two_);
  EXPECT_TRUE(Readable(*inbox_, 0));
  inbox_->EndSleep();
  EXPECT_THAT(PopAll(), ElementsAre(2));
}

// Hangs when a wake-up is lost.
TEST_F(InboxTest, NoWakeUpIsLostBetweenManyProducersAndASleepyConsumer) {
  constexpr int kProducers = 3;
  constexpr int kItems = 3000;
  std::vector<std::vector<std::unique_ptr<NumberItem>>> items(kProducers);
  for (int producer = 0; producer < kProducers; ++producer) {
    for (int i = 0; i < kItems; ++i) {
      items[producer].push_back(std::make_unique<NumberItem>(producer * kItems + i));
    }
  }
  std::vector<std::thread> producers;
  for (auto& mine : items) {
    producers.emplace_back([this, &mine] {
      for (auto& item : mine) inbox_->Push(*item);
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int popped = 0; popped < kProducers * kItems;) {
    if (InboxItem* item = inbox_->Pop()) {
      const int number = static_cast<NumberItem*>(item)->number;
      EXPECT_EQ(number % kItems, next[number / kItems]++) << "out of order";
      ++popped;
      continue;
    }
    if (!inbox_->BeginSleep()) continue;
    ASSERT_TRUE(Readable(*inbox_, -1));
    inbox_->OnReadable();
    inbox_->EndSleep();
  }
  for (std::thread& producer : producers) producer.join();
}

// Whoever sees the item may destroy the inbox while the producer is still inside Push().
TEST_F(InboxTest, TheInboxMayBeDestroyedAsSoonAsTheLastItemIsThere) {
  for (int round = 0; round < 200; ++round) {
    auto inbox = *Inbox::Create();
    NumberItem item(round);
    ASSERT_TRUE(inbox->BeginSleep());
    std::thread producer([&inbox = *inbox, &item] { inbox.Push(item); });
    InboxItem* popped = nullptr;
    while (popped == nullptr) {
      // Woken by anything but the eventfd.
      inbox->EndSleep();
      popped = inbox->Pop();
      if (popped != nullptr) break;
      std::this_thread::yield();
      inbox->BeginSleep();
    }
    inbox.reset();
    producer.join();
  }
}

}  // namespace inbox_test
}  // namespace verbena::internal
