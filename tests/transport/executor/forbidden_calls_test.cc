// An executor works without io_uring and epoll_pwait2, if its kernel or a container's seccomp
// profile forbids them, and names what is forbidden. If the kernel refuses to let it sleep later
// on, the process ends in words.

#include <sys/syscall.h>

#include <cerrno>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/executor/test_support.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/options.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena::internal {
namespace forbidden_calls_test {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ForbiddenCallsTest, WithoutIoUringTheChoiceFallsOnEpollAndTheLogSaysWhy) {
  WithForbidden(SYS_io_uring_setup, EPERM, [] {
    CapturedLog log;
    auto executor = Executor::Create({.mode = ExecutorMode::kEvent});
    ASSERT_TRUE(executor.ok()) << executor.status();
    EXPECT_STREQ((*executor)->waiter_name(), "epoll");
    EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("io_uring cannot be used: PERMISSION_DENIED"),
                                        HasSubstr("sleeps in epoll")));
    SleepOnce(**executor);
  });
}

TEST(ForbiddenCallsTest, AForcedIoUringThatIsForbiddenFailsAndNamesWhatToLookAt) {
  WithForbidden(SYS_io_uring_setup, EPERM, [] {
    auto executor = Executor::Create({.waiter = WaiterKind::kIoUring});
    EXPECT_EQ(executor.status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(executor.status().ToString(), HasSubstr("kernel.io_uring_disabled"));
  });
}

TEST(ForbiddenCallsTest, WithoutEpollPwait2TimersStillFire) {
  WithForbidden(SYS_epoll_pwait2, ENOSYS, [] {
    auto executor = *Executor::Create({.mode = ExecutorMode::kEvent, .waiter = WaiterKind::kEpoll});
    SleepOnce(*executor);
  });
}

// In the dying process alone, whose filter it is.
void WaitWithout(unsigned call, Waiter& waiter) {
  if (Forbid(call, EPERM)) waiter.Wait(Duration::zero());
}

bool FiltersCanBeInstalled() {
  bool installed = false;
  std::thread([&] { installed = Forbid(SYS_io_uring_setup, EPERM); }).join();
  return installed;
}

TEST(ForbiddenCallsDeathTest, AWaiterThatCanNoLongerWaitDoesNotSpin) {
  if (!FiltersCanBeInstalled()) GTEST_SKIP() << "no seccomp filter can be installed here";
  const std::unique_ptr<Waiter> epoll = CreateWaiter(WaiterKind::kEpoll).value();
  EXPECT_DEATH(WaitWithout(kEpollWaitCall, *epoll), "epoll_wait: errno 1");
  const absl::StatusOr<std::unique_ptr<Waiter>> ring = CreateWaiter(WaiterKind::kIoUring);
  if (!ring.ok()) GTEST_SKIP() << ring.status();
  EXPECT_DEATH(WaitWithout(SYS_io_uring_enter, **ring), "io_uring_enter: errno 1");
}

}  // namespace forbidden_calls_test
}  // namespace verbena::internal
