#include "tests/rpc/restartable_server.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"

namespace verbena {

ForkedServers::ForkedServers(int starts, MakeService make, const ServerOptions& options,
                             const RuntimeOptions& runtime) {
  for (int i = 0; i < starts; ++i) Fork(make, options, runtime);
}

ForkedServers::~ForkedServers() {
  for (Process& each : processes_) End(each, SIGKILL);
}

void ForkedServers::Start() {
  Process& next = processes_[++current_];
  const std::string line = address() + "\n";
  EXPECT_EQ(write(next.commands, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_EQ(ReadLine(next.answers), address()) << "the server did not start";
}

void ForkedServers::Stop() {
  Process& process = processes_[current_];
  EXPECT_EQ(write(process.commands, "q", 1), 1);
  End(process, 0);
}

void ForkedServers::Kill() { End(processes_[current_], SIGKILL); }

void ForkedServers::Fork(MakeService make, const ServerOptions& options,
                         const RuntimeOptions& runtime) {
  int commands[2];
  int answers[2];
  EXPECT_EQ(pipe(commands), 0);
  EXPECT_EQ(pipe(answers), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(commands[1]);
    close(answers[0]);
    Serve(make, options, runtime, commands[0], answers[1]);
  }
  close(commands[0]);
  close(answers[1]);
  processes_.push_back({pid, commands[1], answers[0]});
}

void ForkedServers::End(Process& process, int signal) {
  if (process.pid <= 0) return;
  if (signal != 0) kill(process.pid, signal);
  int status = 0;
  waitpid(std::exchange(process.pid, -1), &status, 0);
  if (signal == 0) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  close(process.commands);
  close(process.answers);
}

std::string ForkedServers::ReadLine(int fd) {
  std::string line;
  char c;
  while (read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

// An exception ends the process: GoogleTest would run it as a second test.
void ForkedServers::Serve(MakeService make, ServerOptions options, RuntimeOptions on, int commands,
                          int answers) noexcept {
  options.address = ReadLine(commands);
  if (options.address.empty()) _exit(0);
  {
    const std::unique_ptr<Service> service = make();
    // If one host has two devices, each process takes its own.
    const char* device = std::getenv("VERBENA_PEER_DEVICE");
    on.device = device == nullptr ? "auto" : device;
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(std::move(on));
    if (!runtime.ok()) _exit(1);
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(**runtime, {service.get()}, options);
    if (!server.ok()) _exit(1);
    const std::string line = (*server)->address() + "\n";
    if (write(answers, line.data(), line.size()) < 0) _exit(1);
    char command;
    if (read(commands, &command, 1) != 1) _exit(0);
    (void)(*server)->Shutdown(kGrace);
    server->reset();
    runtime->reset();
  }
  _exit(0);
}

}  // namespace verbena
