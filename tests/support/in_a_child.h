// Tries something in a child process, for what cannot be undone.

#ifndef VERBENA_TESTS_SUPPORT_IN_A_CHILD_H_
#define VERBENA_TESTS_SUPPORT_IN_A_CHILD_H_

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace verbena {

// Whether `run` returns true in a fork of this process.
inline bool SucceedsInAChild(const std::function<bool()>& run) {
  const pid_t child = fork();
  // An exception that left the child's part would reach GoogleTest, which would run the child as a
  // second test.
  if (child == 0) [&]() noexcept { _exit(run() ? 0 : 1); }();
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_IN_A_CHILD_H_
