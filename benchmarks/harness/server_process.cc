#include "verbena/benchmarks/harness/server_process.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace verbena::benchmarks {
namespace {

[[noreturn]] void Serve(const std::string& program, int ready_fd, pid_t parent,
                        const std::function<absl::Status(const Ready& ready)>& serve) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(1);
  const absl::Status status = serve([ready_fd](const std::string& address) {
    const std::string line = address + "\n";
    if (write(ready_fd, line.data(), line.size()) < 0) std::_Exit(1);
    close(ready_fd);
  });
  if (!status.ok()) fmt::print(stderr, "{}: server: {}\n", program, status.ToString());
  std::_Exit(status.ok() ? 0 : 1);
}

}  // namespace

absl::StatusOr<ServerProcess> ServerProcess::Start(
    const std::string& program, const std::function<absl::Status(const Ready& ready)>& serve) {
  int fds[2];
  if (pipe(fds) != 0) return absl::InternalError("pipe failed");
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError("fork failed");
  if (pid == 0) {
    close(fds[0]);
    Serve(program, fds[1], parent, serve);
  }
  close(fds[1]);
  std::string address;
  char c = 0;
  while (read(fds[0], &c, 1) == 1 && c != '\n') address.push_back(c);
  close(fds[0]);
  ServerProcess server(pid, std::move(address));
  if (server.address().empty()) return absl::InternalError("the server process did not start");
  return server;
}

ServerProcess::ServerProcess(pid_t pid, std::string address)
    : pid_(pid), address_(std::move(address)) {}

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), address_(std::move(other.address_)) {}

ServerProcess::~ServerProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace verbena::benchmarks
