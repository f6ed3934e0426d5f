// VERBENA_CHECK aborts with the condition and the values if the condition is false, in every build;
// it evaluates the values only then. VERBENA_DCHECK does the same where it is on.

#include "verbena/transport/base/check.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace verbena {
namespace {

enum class Colour : uint8_t { kRed = 3 };

TEST(CheckTest, DoesNothingWhileItsConditionHolds) {
  int evaluated = 0;
  VERBENA_CHECK(evaluated == 0) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(CheckDeathTest, NamesTheConditionAndItsValues) {
  const size_t bytes = 9;
  EXPECT_DEATH(VERBENA_CHECK(bytes <= 8) << "bytes " << bytes << ", capacity " << 8,
               "check_test.cc:[0-9]+: check failed: bytes <= 8: bytes 9, capacity 8");
}

TEST(CheckDeathTest, PrintsEveryKindOfValue) {
  const void* null = nullptr;
  EXPECT_DEATH(VERBENA_CHECK(false)
                   << std::string("text ") << true << ", " << Colour::kRed << ", " << null,
               "check failed: false: text true, 3, ");
}

TEST(CheckDeathTest, AbortsWithoutValues) {
  EXPECT_DEATH(VERBENA_CHECK(1 + 1 == 3), "check failed: 1 \\+ 1 == 3\n");
}

// A check is one expression, so that an else after it belongs to the reader's if.
TEST(CheckTest, IsOneExpression) {
  bool reached = false;
  if (reached)
    VERBENA_CHECK(false) << "never";
  else
    reached = true;
  EXPECT_TRUE(reached);
}

#if VERBENA_DCHECK_IS_ON
TEST(CheckDeathTest, ACheckOfThisBuildAloneAbortsToo) {
  const size_t left = 0;
  EXPECT_DEATH(VERBENA_DCHECK(left > 0) << "left " << left,
               "check_test.cc:[0-9]+: check failed: left > 0: left 0");
}
#endif

}  // namespace
}  // namespace verbena
