// ServerProcess: a server of one service, as a process of its own.

#ifndef VERBENA_TESTS_RPC_SERVER_PROCESS_H_
#define VERBENA_TESTS_RPC_SERVER_PROCESS_H_

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena {

// The constructor forks, so it must run while the test has no threads. It returns when the server
// listens. The destructor kills the process.
template <typename Service>
class ServerProcess {
 public:
  // Called in the server's process before the server starts.
  using Prepare =
      std::function<void(Service& service, RuntimeOptions& options, internal::TestDevice& device)>;

  explicit ServerProcess(const std::string& address, const Prepare& prepare = {}) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      Serve(address, prepare, fds[1]);
    }
    close(fds[1]);
    char c;
    while (read(fds[0], &c, 1) == 1 && c != '\n') address_.push_back(c);
    close(fds[0]);
    EXPECT_FALSE(address_.empty()) << "the server process did not start";
  }
  ~ServerProcess() { Kill(); }

  const std::string& address() const { return address_; }
  void Signal(int number) const { EXPECT_EQ(kill(pid_, number), 0); }
  // Whether the process has died; waits for nothing.
  bool HasEnded() {
    if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
    return pid_ <= 0;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  // An exception ends the process: GoogleTest would run it as a second test.
  [[noreturn]] static void Serve(const std::string& address, const Prepare& prepare,
                                 int out) noexcept {
    Service service;
    // If one host has two devices, each process takes its own.
    const char* device = std::getenv("VERBENA_PEER_DEVICE");
    RuntimeOptions options{.device = device == nullptr ? "auto" : device};
    internal::TestDevice test_device;
    if (prepare) prepare(service, options, test_device);
    auto runtime = internal::RuntimeCore::Start(std::move(options), std::move(test_device));
    if (!runtime.ok()) _exit(1);
    auto server = Server::Start(**runtime, {&service}, {.address = address});
    if (!server.ok()) _exit(1);
    const std::string line = (*server)->address() + "\n";
    if (write(out, line.data(), line.size()) < 0) _exit(1);
    close(out);
    while (true) pause();
  }

  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_SERVER_PROCESS_H_
