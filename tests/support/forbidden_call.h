// A thread on which one system call fails, as under a container's seccomp profile.

#ifndef VERBENA_TESTS_SUPPORT_FORBIDDEN_CALL_H_
#define VERBENA_TESTS_SUPPORT_FORBIDDEN_CALL_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <bit>
#include <cstddef>
#include <functional>
#include <thread>

#include "gtest/gtest.h"

namespace verbena {

// The C library makes these system calls for unlink() and epoll_wait(). Younger architectures, such
// as aarch64, have only the general ones.
#ifdef SYS_unlink
inline constexpr unsigned kUnlinkCall = SYS_unlink;
#else
inline constexpr unsigned kUnlinkCall = SYS_unlinkat;
#endif
#ifdef SYS_epoll_wait
inline constexpr unsigned kEpollWaitCall = SYS_epoll_wait;
#else
inline constexpr unsigned kEpollWaitCall = SYS_epoll_pwait;
#endif

// From now on this thread, and those that it starts, have `program`. False when the kernel takes no
// filter.
template <size_t kInstructions>
bool InstallFilter(sock_filter (&program)[kInstructions]) {
  const sock_fprog filter = {.len = kInstructions, .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// From now on `call` fails with `error` on this thread. False when no filter can be installed.
inline bool Forbid(unsigned call, unsigned error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return InstallFilter(program);
}

// The same for calls whose second argument is `command`, as of fcntl(2).
inline bool ForbidCommand(unsigned call, unsigned command, unsigned error) {
  constexpr unsigned kSecondArgument = offsetof(seccomp_data, args) + sizeof(seccomp_data::args[0]);
  static_assert(std::endian::native == std::endian::little, "its low half comes first");
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSecondArgument),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, command, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return InstallFilter(program);
}

// Runs `body` on a thread of its own once `forbid` has succeeded there, since a filter stays for a
// thread's life. Skips the test if no filter can be installed.
inline void OnFilteredThread(const std::function<bool()>& forbid,
                             const std::function<void()>& body) {
  bool forbidden = false;
  std::thread([&] {
    forbidden = forbid();
    if (forbidden) body();
  }).join();
  if (!forbidden) GTEST_SKIP() << "no seccomp filter can be installed here";
}

inline void WithForbidden(unsigned call, unsigned error, const std::function<void()>& body) {
  OnFilteredThread([&] { return Forbid(call, error); }, body);
}

inline void WithForbiddenCommand(unsigned call, unsigned command, unsigned error,
                                 const std::function<void()>& body) {
  OnFilteredThread([&] { return ForbidCommand(call, command, error); }, body);
}

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_FORBIDDEN_CALL_H_
