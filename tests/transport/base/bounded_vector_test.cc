// A BoundedVector works as a stack that keeps its contents when it gets more room. Pushing beyond
// its room aborts in debug builds.

#include "verbena/transport/base/list.h"

#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace bounded_vector_test {

TEST(BoundedVectorTest, GivesBackWhatCameLastFirst) {
  BoundedVector<int> items(3);
  EXPECT_TRUE(items.empty());
  items.PushBack(1);
  items.PushBack(2);
  items.PushBack(3);
  EXPECT_EQ(items.size(), 3u);
  EXPECT_EQ(items.back(), 3);
  EXPECT_EQ(items.PopBack(), 3);
  EXPECT_EQ(items.PopBack(), 2);
  items.PushBack(4);
  EXPECT_EQ(std::vector<int>(items.begin(), items.end()), (std::vector<int>{1, 4}));
  items.clear();
  EXPECT_TRUE(items.empty());
  EXPECT_EQ(items.capacity(), 3u);
}

TEST(BoundedVectorTest, MoreRoomKeepsWhatIsHeld) {
  BoundedVector<int> items;
  for (int i = 0; i < 100; ++i) {
    items.Reserve(items.size() + 1);
    items.PushBack(i);
  }
  items.Reserve(10);
  ASSERT_EQ(items.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(items[i], i);
}

#ifndef NDEBUG
TEST(BoundedVectorDeathTest, OneMoreThanItsRoomIsOurOwnBug) {
  BoundedVector<int> items(1);
  items.PushBack(1);
  EXPECT_DEATH(items.PushBack(2), "capacity|size");
}
#endif

}  // namespace bounded_vector_test
}  // namespace verbena::internal
