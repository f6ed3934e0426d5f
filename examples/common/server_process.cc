#include "examples/common/server_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>

#include "fmt/format.h"

namespace examples {
namespace {

constexpr std::chrono::seconds kStartTimeout(30);
constexpr std::chrono::seconds kStopGrace(30);
constexpr std::string_view kReadyPrefix = "listening on ";

using SteadyClock = std::chrono::steady_clock;

std::chrono::milliseconds TimeLeft(SteadyClock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

// As fork(), with new namespaces for the child.
pid_t ForkInto(int namespaces) {
  return static_cast<pid_t>(syscall(SYS_clone, namespaces | SIGCHLD, nullptr, nullptr, 0, nullptr));
}

// Child: all that RunChild() needs to start a program.
struct Child {
  char* const* arguments;
  int output;
  pid_t parent;
  int namespaces;
  std::string user;  // the line of its uid_map
};

// The child's side of a fork. Calls only functions that are safe between fork and exec.
[[noreturn]] void RunChild(const Child& child) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // The parent may have ended before prctl(). A new namespace of PIDs does not show it.
  if ((child.namespaces & CLONE_NEWPID) == 0 && getppid() != child.parent) _exit(1);
  if ((child.namespaces & CLONE_NEWUSER) != 0) {
    const int map = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    (void)!write(map, child.user.data(), child.user.size());
    close(map);
  }
  StopSignals::ForChild();
  dup2(child.output, STDOUT_FILENO);
  execv(child.arguments[0], child.arguments);
  constexpr std::string_view kMessage = ": cannot be executed\n";
  (void)!write(STDERR_FILENO, child.arguments[0], std::strlen(child.arguments[0]));
  (void)!write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    const std::string& path, const std::vector<std::string>& arguments, int namespaces) {
  if (access(path.c_str(), X_OK) != 0) return absl::ErrnoToStatus(errno, path);
  std::vector<std::string> strings = {path};
  strings.insert(strings.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);

  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  Child child{.arguments = pointers.data(),
              .output = output[1],
              .parent = getpid(),
              .namespaces = namespaces,
              .user = fmt::format("{0} {0} 1", geteuid())};
  pid_t pid = ForkInto(child.namespaces);
  if (pid < 0 && errno == EPERM) {
    child.namespaces |= CLONE_NEWUSER;
    pid = ForkInto(child.namespaces);
  }
  if (pid == 0) RunChild(child);
  const int fork_error = errno;
  close(output[1]);
  if (pid < 0) {
    close(output[0]);
    return absl::ErrnoToStatus(fork_error, "a process for " + path);
  }
  // By number: the declaration of glibc 2.36 has no C linkage.
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const int pidfd_error = errno;
  std::unique_ptr<ServerProcess> process(
      new ServerProcess(path.substr(path.rfind('/') + 1), pid, pidfd, output[0]));
  if (pidfd < 0) return absl::ErrnoToStatus(pidfd_error, "pidfd_open");
  return process;
}

ServerProcess::~ServerProcess() {
  if (!wait_status_.has_value()) {
    kill(pid_, SIGKILL);
    Reap(0);
  }
  close(pidfd_);
  close(output_);
}

absl::Status ServerProcess::WaitUntilReady(StopSignals& signals) {
  const auto deadline = SteadyClock::now() + kStartTimeout;
  std::string line;
  while (line.empty() || line.back() != '\n') {
    switch (signals.WaitReadable(output_, TimeLeft(deadline))) {
      case Woken::kBySignal:
        return absl::CancelledError("interrupted");
      case Woken::kTimeout:
        if (SteadyClock::now() < deadline) continue;
        return absl::DeadlineExceededError(
            fmt::format("{} (process {}) did not say that it is ready", name_, pid_));
      case Woken::kReadable:
        break;
    }
    // Byte by byte, so that nothing after the line is read.
    char byte;
    const ssize_t bytes = read(output_, &byte, 1);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      Reap(0);
      const bool has_said_why = WIFEXITED(wait_status_.value_or(0));
      return has_said_why ? absl::UnavailableError("") : HowItEnded();
    }
    line += byte;
  }
  if (line.rfind(kReadyPrefix, 0) != 0) {
    return absl::InternalError(fmt::format("{} said '{}'", name_, line));
  }
  address_ = line.substr(kReadyPrefix.size(), line.size() - kReadyPrefix.size() - 1);
  return absl::OkStatus();
}

absl::Status ServerProcess::Stop(StopSignals& signals) {
  if (Reap(WNOHANG)) return HowItEnded();
  kill(pid_, SIGTERM);
  const auto deadline = SteadyClock::now() + kStopGrace;
  while (!Reap(WNOHANG)) {
    const Woken woken = signals.WaitReadable(pidfd_, TimeLeft(deadline));
    if (woken == Woken::kBySignal || SteadyClock::now() >= deadline) {
      kill(pid_, SIGKILL);
      Reap(0);
      return absl::DeadlineExceededError(
          fmt::format("{} (process {}) did not end when asked to, and was killed", name_, pid_));
    }
  }
  return *wait_status_ == 0 ? absl::OkStatus() : HowItEnded();
}

absl::Status ServerProcess::WaitForEnd(StopSignals& signals) {
  while (!Reap(WNOHANG)) {
    if (signals.WaitReadable(pidfd_, std::chrono::hours(1)) == Woken::kBySignal) {
      kill(pid_, SIGKILL);
      Reap(0);
      return absl::CancelledError("interrupted");
    }
  }
  return *wait_status_ == 0 ? absl::OkStatus() : HowItEnded();
}

absl::Status ServerProcess::CheckRunning() {
  return Reap(WNOHANG) ? HowItEnded() : absl::OkStatus();
}

bool ServerProcess::Reap(int options) {
  if (wait_status_.has_value()) return true;
  int status = 0;
  pid_t ended;
  do {
    ended = waitpid(pid_, &status, options);
  } while (ended < 0 && errno == EINTR);
  if (ended == pid_) wait_status_ = status;
  return wait_status_.has_value();
}

absl::Status ServerProcess::HowItEnded() const {
  const int status = wait_status_.value_or(0);
  if (WIFSIGNALED(status)) {
    return absl::UnavailableError(fmt::format("{} (process {}) was ended by signal {} ({})", name_,
                                              pid_, WTERMSIG(status), strsignal(WTERMSIG(status))));
  }
  return absl::UnavailableError(
      fmt::format("{} (process {}) ended with status {}", name_, pid_, WEXITSTATUS(status)));
}

}  // namespace examples
