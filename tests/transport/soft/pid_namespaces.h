// A Child (two_processes.h) in a PID namespace of its own, as in another container. The kernel
// gives it our process id as 0.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_PID_NAMESPACES_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_PID_NAMESPACES_H_

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/in_a_child.h"
#include "tests/transport/soft/two_processes.h"

namespace verbena::internal::soft {

// The caller's later children live in a new PID namespace, as the same user. For good, so only a
// child of the test calls this. False if the kernel refuses.
inline bool EnterNewPidNamespace() {
  if (unshare(CLONE_NEWPID) == 0) return true;
  const uid_t uid = geteuid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return false;
  const std::string same_user = std::to_string(uid) + " " + std::to_string(uid) + " 1";
  const int map = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
  const bool mapped =
      write(map, same_user.data(), same_user.size()) == static_cast<ssize_t>(same_user.size());
  close(map);
  return mapped;
}

inline bool MayMakePidNamespaces() { return SucceedsInAChild(EnterNewPidNamespace); }

// A function for a Child: it has `run` run in a new PID namespace, and waits for it.
inline std::function<void(Side&)> InNewPidNamespace(std::function<void(Side&)> run) {
  return [run = std::move(run)](Side& side) {
    ASSERT_TRUE(EnterNewPidNamespace());
    const pid_t first = fork();
    ASSERT_GE(first, 0) << "fork: " << std::strerror(errno);
    if (first == 0) {
      // The test knows, and kills, only the Child.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      EXPECT_EQ(getpid(), 1);
      run(side);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(first, &status, 0), first);
    EXPECT_EQ(status, 0) << "the process in the other PID namespace failed";
  };
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_PID_NAMESPACES_H_
