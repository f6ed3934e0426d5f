#include "tests/rpc/server_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena {

ForkedServer::ForkedServer(const std::string& address, const MakeService& make) {
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  pid_ = fork();
  if (pid_ == 0) {
    close(fds[0]);
    Serve(address, make, fds[1]);
  }
  close(fds[1]);
  char c;
  while (read(fds[0], &c, 1) == 1 && c != '\n') address_.push_back(c);
  close(fds[0]);
  EXPECT_FALSE(address_.empty()) << "the server process did not start";
}

void ForkedServer::Signal(int number) const { EXPECT_EQ(kill(pid_, number), 0); }

bool ForkedServer::HasEnded() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ <= 0;
}

void ForkedServer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

// An exception ends the process: GoogleTest would run it as a second test.
void ForkedServer::Serve(const std::string& address, const MakeService& make, int out) noexcept {
  // If one host has two devices, each process takes its own.
  const char* device = std::getenv("VERBENA_PEER_DEVICE");
  RuntimeOptions options{.device = device == nullptr ? "auto" : device};
  internal::TestDevice test_device;
  const std::unique_ptr<Service> service = make(options, test_device);
  auto runtime = internal::RuntimeCore::Start(std::move(options), std::move(test_device));
  if (!runtime.ok()) _exit(1);
  auto server = Server::Start(**runtime, {service.get()}, {.address = address});
  if (!server.ok()) _exit(1);
  const std::string line = (*server)->address() + "\n";
  if (write(out, line.data(), line.size()) < 0) _exit(1);
  close(out);
  while (true) pause();
}

}  // namespace verbena
