// A text is written once for all who ask within a while, and few are held at once, however slowly
// they are read.

#include "verbena/rpc/admin/shared_text.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {
namespace shared_text_test {

class SharedTextTest : public ::testing::Test {
 protected:
  // Returns what somebody gets who asks so long after the one before.
  std::shared_ptr<const std::string> After(Duration wait) {
    now_ += wait;
    return text_.Get(now_, [this] { return std::to_string(++written_); });
  }

  static constexpr Duration kMoment = std::chrono::nanoseconds(1);

  SharedText text_;
  TimePoint now_ = TimePoint(std::chrono::hours(1));
  int written_ = 0;
};

TEST_F(SharedTextTest, ItIsWrittenOnceForAWhile) {
  EXPECT_EQ(*After(Duration::zero()), "1");
  EXPECT_EQ(*After(Duration::zero()), "1");
  EXPECT_EQ(*After(SharedText::kFresh - kMoment), "1");
  EXPECT_EQ(*After(kMoment), "2");
  EXPECT_EQ(*After(SharedText::kFresh), "3");
}

TEST_F(SharedTextTest, SlowReadersShareTheLastOfAFew) {
  std::vector<std::shared_ptr<const std::string>> slow;
  for (int i = 0; i < 100; ++i) slow.push_back(After(SharedText::kFresh));
  EXPECT_EQ(written_, static_cast<int>(SharedText::kMost));
  EXPECT_EQ(slow.back(), slow[SharedText::kMost - 1]);
  slow.erase(slow.begin());
  EXPECT_EQ(*After(SharedText::kFresh), std::to_string(SharedText::kMost + 1))
      << "the first one is gone";
}

}  // namespace shared_text_test
}  // namespace verbena::internal
