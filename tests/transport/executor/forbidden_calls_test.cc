// What an executor does where the kernel, or a container's seccomp profile, forbids what it would
// like to use.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/executor/test_support.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// From now on `call` fails with `error` on this thread. False when no filter can be installed.
bool Forbid(unsigned call, unsigned error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {.len = std::size(program), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Runs `body` on a thread of its own, since a filter stays for a thread's life.
void WithForbidden(unsigned call, unsigned error, const std::function<void()>& body) {
  bool forbidden = false;
  std::thread([&] {
    forbidden = Forbid(call, error);
    if (forbidden) body();
  }).join();
  if (!forbidden) GTEST_SKIP() << "no seccomp filter can be installed here";
}

Task<void> SleepThenStop(Executor& executor, bool& slept) {
  slept = (co_await Sleep(std::chrono::milliseconds(1))).ok();
  executor.Stop();
}

// Sleeps at least once, and is woken by its timer.
void ExpectSleepsAndWakes(Executor& executor) {
  bool slept = false;
  Spawn(executor, SleepThenStop(executor, slept));
  executor.Run();
  EXPECT_TRUE(slept);
  EXPECT_GE(executor.stats().sleeps, 1u);
}

TEST(ForbiddenCallsTest, WithoutIoUringTheChoiceFallsOnEpollAndTheLogSaysWhy) {
  WithForbidden(SYS_io_uring_setup, EPERM, [] {
    CapturedLog log;
    auto executor = Executor::Create({.mode = ExecutorMode::kEvent});
    ASSERT_TRUE(executor.ok()) << executor.status();
    EXPECT_STREQ((*executor)->waiter_name(), "epoll");
    EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("io_uring cannot be used: PERMISSION_DENIED"),
                                        HasSubstr("sleeps in epoll")));
    ExpectSleepsAndWakes(**executor);
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
    ExpectSleepsAndWakes(*executor);
  });
}

}  // namespace
}  // namespace verbena
