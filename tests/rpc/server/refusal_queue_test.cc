// A link's queue of refusals keeps their order, and no memory that it does not need.

#include "verbena/rpc/server/refusals.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace verbena::internal {
namespace refusal_queue_test {

Refusal Numbered(uint32_t number) {
  return {{.slot = number % kMaxCallsInFlight, .generation = number}, RefusalReason{1}};
}

TEST(RefusalQueueTest, RefusalsLeaveInOrder) {
  static_assert(sizeof(Refusal) == 8);
  RefusalQueue queue;
  uint32_t pushed = 0;
  uint32_t popped = 0;
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < 7; ++i) queue.PushBack(Numbered(pushed++));
    for (int i = 0; i < (round < 500 ? 3 : 11) && !queue.empty(); ++i) {
      ASSERT_EQ(queue.front().generation, popped);
      ASSERT_EQ(queue.front().slot, popped % kMaxCallsInFlight);
      queue.PopFront();
      ++popped;
    }
    ASSERT_EQ(queue.size(), pushed - popped);
    ASSERT_EQ(queue.left(), popped);
    ASSERT_EQ(queue.queued(), pushed);
  }
  EXPECT_TRUE(queue.empty());
  queue.PushBack(Numbered(1));
  queue.Clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.left(), pushed + 1);
}

}  // namespace refusal_queue_test
}  // namespace verbena::internal
