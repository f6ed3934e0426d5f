// Slices end in the order in which they were posted, and no sooner. READs and bytes count from a
// slice's post to its end.

#include "verbena/transport/link/transfers.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace verbena::internal {
namespace posted_slices_test {

class PostedSlicesTest : public testing::Test {
 protected:
  // The slice has two WRs, at the next two positions.
  void Add(Transfer& transfer, uint32_t reads, uint32_t bytes) {
    end_ += 2;
    slices_.Add({.end = end_, .reads = reads, .bytes = bytes, .transfer = &transfer});
  }

  Transfer one_;
  Transfer two_;
  PostedSlices slices_{3};
  uint32_t end_ = 0xfffffffd;  // wraps around within the second slice
};

TEST_F(PostedSlicesTest, EndInTheirOrderThoughPositionsWrapAround) {
  Add(one_, 0, 10);
  Add(two_, 0, 10);
  Add(one_, 0, 10);
  EXPECT_FALSE(slices_.HasEnded(0xfffffffe));
  EXPECT_TRUE(slices_.HasEnded(0xffffffff));
  EXPECT_EQ(slices_.Take().transfer, &one_);
  EXPECT_FALSE(slices_.HasEnded(0xffffffff));
  EXPECT_FALSE(slices_.HasEnded(0));
  EXPECT_TRUE(slices_.HasEnded(2));
  EXPECT_EQ(slices_.Take().transfer, &two_);
  EXPECT_FALSE(slices_.HasEnded(2));
  EXPECT_TRUE(slices_.HasEnded(3));
  EXPECT_EQ(slices_.Take().transfer, &one_);
  EXPECT_TRUE(slices_.empty());
  EXPECT_FALSE(slices_.HasEnded(3)) << "there is none";
  EXPECT_EQ(slices_.taken(), 3u);
}

TEST_F(PostedSlicesTest, CountReadsAndBytesUntilTheyAreTaken) {
  Add(one_, 2, 100);
  Add(two_, 0, 30);
  EXPECT_EQ(slices_.count(), 2u);
  EXPECT_EQ(slices_.reads(), 2u);
  EXPECT_EQ(slices_.bytes(), 130u);
  slices_.Take();
  EXPECT_EQ(slices_.reads(), 0u);
  EXPECT_EQ(slices_.bytes(), 30u);
  slices_.Take();
  EXPECT_EQ(slices_.bytes(), 0u);
}

// More are added in all than fit at once.
TEST_F(PostedSlicesTest, FindTheLastSliceOfATransferAmongThoseThatAreThere) {
  EXPECT_EQ(slices_.FindLast(one_), nullptr);
  for (uint32_t i = 0; i < 10; ++i) {
    Add(one_, 0, i);
    Add(two_, 0, 0);
    Add(one_, 1, i);
    ASSERT_NE(slices_.FindLast(one_), nullptr);
    EXPECT_EQ(slices_.FindLast(one_)->reads, 1u);
    slices_.Take();
    EXPECT_NE(slices_.FindLast(two_), nullptr);
    slices_.Take();
    EXPECT_EQ(slices_.FindLast(two_), nullptr);
    slices_.Take();
  }
}

using PostedSlicesDeathTest = PostedSlicesTest;

TEST_F(PostedSlicesDeathTest, MoreThanFitAbort) {
  for (int i = 0; i < 4; ++i) Add(one_, 0, 0);
  EXPECT_DEATH(Add(one_, 0, 0), "slices 4");
}

}  // namespace posted_slices_test
}  // namespace verbena::internal
