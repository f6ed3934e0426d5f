#include "tools/verbena/sharing_facts.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "tools/verbena/small_files.h"
#include "verbena/transport/soft/shared_memory.h"

namespace verbena::doctor {
namespace {

// "net:[4026531840]" -> "4026531840"
std::string NumberOf(const std::string& link) {
  const size_t from = link.find('[');
  const size_t to = link.find(']');
  return from == std::string::npos || to == std::string::npos
             ? ""
             : link.substr(from + 1, to - from - 1);
}

absl::Status StatusOf(int error, const char* call) {
  return error == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, call);
}

// A child that sleeps until the object ends.
class Sleeper {
 public:
  Sleeper() : Sleeper(getpid()) {}
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }

 private:
  explicit Sleeper(pid_t parent) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A parent that died before sends no signal.
    while (getppid() == parent) pause();
    _exit(0);
  }

  const pid_t pid_;
};

// Calls `call` in a child of this process; the errno of it, or 0.
template <typename Call>
int ErrorInAChild(Call call) {
  const pid_t child = fork();
  if (child == 0) _exit(call() >= 0 ? 0 : errno);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return errno;
  return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

}  // namespace

SharingFacts ReadSharingFacts() {
  SharingFacts facts;
  facts.user = geteuid();
  for (const char* name : {"ipc", "mnt", "net", "pid", "time", "user"}) {
    std::error_code error;
    const std::string link = "/proc/self/ns/" + std::string(name);
    facts.namespaces[name] = NumberOf(std::filesystem::read_symlink(link, error).string());
  }
  facts.ptrace_scope = ReadNumber("/proc/sys/kernel/yama/ptrace_scope");
  facts.memory = internal::soft::SharedRegion::Create("verbena-doctor", 4096).status();
  // Both are children of this process, and neither is the other's, as two servers are.
  const Sleeper other;
  static char byte = 'x';  // at the same address in all three
  const iovec one{.iov_base = &byte, .iov_len = 1};
  facts.process_handle = StatusOf(
      ErrorInAChild([&] { return syscall(SYS_pidfd_open, other.pid(), 0); }), "pidfd_open");
  facts.read_other =
      StatusOf(ErrorInAChild([&] { return process_vm_readv(other.pid(), &one, 1, &one, 1, 0); }),
               "process_vm_readv");
  facts.write_other =
      StatusOf(ErrorInAChild([&] { return process_vm_writev(other.pid(), &one, 1, &one, 1, 0); }),
               "process_vm_writev");
  return facts;
}

}  // namespace verbena::doctor
