// Parts: one of a class, made when it is first asked for, cleared and destroyed with the owner.

#include "verbena/rpc/shard/parts.h"

#include "gtest/gtest.h"

namespace verbena::internal {
namespace parts_test {

struct Counts {
  int made = 0;
  int cleared = 0;
  int destroyed = 0;
};

class Counted : public Part {
 public:
  explicit Counted(Counts& counts) : counts_(counts) { ++counts_.made; }
  ~Counted() override { ++counts_.destroyed; }
  void Clear() override { ++counts_.cleared; }

 private:
  Counts& counts_;
};

class Another final : public Counted {
 public:
  using Counted::Counted;
};

TEST(PartsTest, APartIsMadeOnceAndDestroyedWithItsOwner) {
  Counts counts;
  {
    Parts parts;
    EXPECT_EQ(counts.made, 0);
    Counted& part = parts.Get<Counted>(counts);
    EXPECT_EQ(&parts.Get<Counted>(counts), &part);
    EXPECT_EQ(counts.made, 1);
    EXPECT_EQ(counts.destroyed, 0);
  }
  EXPECT_EQ(counts.destroyed, 1);
}

TEST(PartsTest, EachClassHasAPartOfItsOwn) {
  Counts counts;
  Counts others;
  Parts parts;
  Part& one = parts.Get<Counted>(counts);
  EXPECT_NE(static_cast<Part*>(&parts.Get<Another>(others)), &one);
  EXPECT_EQ(counts.made, 1);
  EXPECT_EQ(others.made, 1);
}

// What a task makes that comes too late must not take up work.
TEST(PartsTest, APartThatIsMadeAfterTheEndIsClearedToo) {
  Counts counts;
  Counts late;
  Parts parts;
  parts.Get<Counted>(counts);
  parts.Clear();
  EXPECT_EQ(counts.cleared, 1);
  parts.Get<Another>(late);
  EXPECT_EQ(late.cleared, 1);
}

}  // namespace parts_test
}  // namespace verbena::internal
