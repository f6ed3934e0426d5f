// The status macros return the first error unchanged and otherwise go on with the value, in
// functions and in coroutines.

#include "verbena/transport/base/status.h"

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace status_macros_test {

using absl::StatusCode;

absl::Status Fail(bool fail) { return fail ? absl::NotFoundError("gone") : absl::OkStatus(); }
absl::StatusOr<std::unique_ptr<int>> Make(bool fail) {
  if (fail) return absl::NotFoundError("gone");
  return std::make_unique<int>(1);
}
template <typename T, int kValue>
absl::StatusOr<T> Constant() {
  return kValue;
}
Task<absl::Status> FailLater(bool fail) { co_return Fail(fail); }
Task<absl::StatusOr<std::unique_ptr<int>>> MakeLater(bool fail) { co_return Make(fail); }

absl::StatusOr<int> Plain(bool fail_first, bool fail_second, int& reached) {
  VERBENA_RETURN_IF_ERROR(Fail(fail_first));
  ++reached;
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<int> made, Make(fail_second));
  ++reached;
  VERBENA_ASSIGN_OR_RETURN(*made, Constant<int, 5>());
  if (reached == 2)
    VERBENA_RETURN_IF_ERROR(absl::OkStatus());
  else
    return absl::InternalError("dangling else");
  return *made;
}

Task<absl::StatusOr<int>> Coroutine(bool fail_first, bool fail_second, int& reached) {
  VERBENA_CO_RETURN_IF_ERROR(co_await FailLater(fail_first));
  ++reached;
  VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<int> made, co_await MakeLater(fail_second));
  ++reached;
  VERBENA_CO_ASSIGN_OR_RETURN(*made, Constant<int, 5>());
  co_return *made;
}

TEST(StatusMacrosTest, OkGoesOnWithTheValue) {
  int reached = 0;
  EXPECT_EQ(*Plain(false, false, reached), 5);
  ManualScheduler scheduler;
  EXPECT_EQ(*scheduler.Run(Coroutine(false, false, reached)), 5);
  EXPECT_EQ(reached, 4);
}

TEST(StatusMacrosTest, ErrorReturnsAtOnceWithItsMessage) {
  ManualScheduler scheduler;
  for (int failing = 0; failing < 2; ++failing) {
    int reached = 0;
    absl::Status plain = Plain(failing == 0, failing == 1, reached).status();
    EXPECT_EQ(plain, absl::NotFoundError("gone"));
    EXPECT_EQ(reached, failing);
    reached = 0;
    absl::Status later = scheduler.Run(Coroutine(failing == 0, failing == 1, reached)).status();
    EXPECT_EQ(later, absl::NotFoundError("gone"));
    EXPECT_EQ(reached, failing);
  }
}

}  // namespace status_macros_test
}  // namespace verbena::internal
