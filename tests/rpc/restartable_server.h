// RestartableServer: a server of one service that is restarted as another process, at the same
// address, while the test has threads.
//
// Forks all of its processes at first, since a process with threads must not fork: each waits to be
// told its address. They end with the test, however that ends.

#ifndef VERBENA_TESTS_RPC_RESTARTABLE_SERVER_H_
#define VERBENA_TESTS_RPC_RESTARTABLE_SERVER_H_

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/held_port.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"

namespace verbena {

template <typename Service>
class RestartableServer {
 public:
  // How long a process that is told to stop lets its calls go on.
  static constexpr std::chrono::seconds kGrace{20};

  // Construct it while the test has no threads. `starts` is how often Start() may be called.
  explicit RestartableServer(int starts) {
    for (int i = 0; i < starts; ++i) Fork();
  }
  RestartableServer(const RestartableServer&) = delete;
  RestartableServer& operator=(const RestartableServer&) = delete;
  ~RestartableServer() {
    for (Process& each : processes_) End(each, SIGKILL);
  }

  // Returns when the server listens.
  void Start() {
    Process& next = processes_[++current_];
    const std::string line = address() + "\n";
    EXPECT_EQ(write(next.commands, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    EXPECT_EQ(ReadLine(next.answers), address()) << "the server did not start";
  }
  // Shuts it down as an operator does, and returns when its process has ended.
  void Stop() {
    Process& process = processes_[current_];
    EXPECT_EQ(write(process.commands, "q", 1), 1);
    End(process, 0);
  }
  void Kill() { End(processes_[current_], SIGKILL); }
  const std::string& address() const { return port_.address(); }

 private:
  struct Process {
    pid_t pid = -1;
    int commands = -1;
    int answers = -1;
  };

  void Fork() {
    int commands[2];
    int answers[2];
    EXPECT_EQ(pipe(commands), 0);
    EXPECT_EQ(pipe(answers), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(commands[1]);
      close(answers[0]);
      Serve(commands[0], answers[1]);
    }
    close(commands[0]);
    close(answers[1]);
    processes_.push_back({pid, commands[1], answers[0]});
  }

  // 0: it ends by itself.
  static void End(Process& process, int signal) {
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

  static std::string ReadLine(int fd) {
    std::string line;
    char c;
    while (read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
    return line;
  }

  // An exception ends the process: GoogleTest would run it as a second test.
  [[noreturn]] static void Serve(int commands, int answers) noexcept {
    const std::string address = ReadLine(commands);
    if (address.empty()) _exit(0);
    {
      Service service;
      // If one host has two devices, each process takes its own.
      const char* device = std::getenv("VERBENA_PEER_DEVICE");
      absl::StatusOr<std::unique_ptr<Runtime>> runtime =
          Runtime::Start({.device = device == nullptr ? "auto" : device});
      if (!runtime.ok()) _exit(1);
      absl::StatusOr<std::unique_ptr<Server>> server =
          Server::Start(**runtime, {&service}, {.address = address});
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

  const HeldPort port_;
  std::vector<Process> processes_;
  int current_ = -1;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_RESTARTABLE_SERVER_H_
