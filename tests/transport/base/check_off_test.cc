// VERBENA_DCHECK in a build in which it is off: it checks and evaluates nothing.

#define VERBENA_DCHECK_IS_ON 0
#include "gtest/gtest.h"
#include "verbena/transport/base/check.h"

namespace verbena {
namespace {

TEST(CheckOffTest, EvaluatesNeitherConditionNorValues) {
  int evaluated = 0;
  VERBENA_DCHECK(++evaluated > 1) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

// The compiler would warn of a variable that nothing uses.
TEST(CheckOffTest, CountsAsAUseOfItsVariables) {
  const bool holds = false;
  VERBENA_DCHECK(holds);
}

TEST(CheckOffTest, IsOneExpression) {
  bool reached = false;
  if (reached)
    VERBENA_DCHECK(false) << "never";
  else
    reached = true;
  EXPECT_TRUE(reached);
}

}  // namespace
}  // namespace verbena
