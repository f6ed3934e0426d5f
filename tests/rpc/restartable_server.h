// RestartableServer: a server of one service that is restarted as another process, at the same
// address, while the test has threads.
//
// Forks all of its processes at first, since a process with threads must not fork: each waits to be
// told its address. They end with the test, however that ends.

#ifndef VERBENA_TESTS_RPC_RESTARTABLE_SERVER_H_
#define VERBENA_TESTS_RPC_RESTARTABLE_SERVER_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/held_port.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/service.h"

namespace verbena {

// The part of a RestartableServer that knows no service's type.
class ForkedServers {
 public:
  // How long a process that is told to stop lets its calls go on.
  static constexpr std::chrono::seconds kGrace{20};

  ForkedServers(const ForkedServers&) = delete;
  ForkedServers& operator=(const ForkedServers&) = delete;
  ~ForkedServers();

  // Returns when the server listens.
  void Start();
  // Shuts it down as an operator does, and returns when its process has ended.
  void Stop();
  void Kill();
  const std::string& address() const { return port_.address(); }

 protected:
  // Called in a server's process.
  using MakeService = std::unique_ptr<Service> (*)();

  ForkedServers(int starts, MakeService make, const ServerOptions& options,
                const RuntimeOptions& runtime);

 private:
  struct Process {
    pid_t pid = -1;
    int commands = -1;
    int answers = -1;
  };

  void Fork(MakeService make, const ServerOptions& options, const RuntimeOptions& runtime);
  // 0: it ends by itself.
  static void End(Process& process, int signal);
  static std::string ReadLine(int fd);
  [[noreturn]] static void Serve(MakeService make, ServerOptions options, RuntimeOptions on,
                                 int commands, int answers) noexcept;

  const HeldPort port_;
  std::vector<Process> processes_;
  int current_ = -1;
};

template <typename TestService>
class RestartableServer final : public ForkedServers {
 public:
  // Construct it while the test has no threads. `starts` is how often Start() may be called. The
  // address in `options` and the device in `runtime` are ignored: the port is held, and the
  // environment names the device. A clock in `runtime` stands still in the processes, as it was
  // when they were forked.
  explicit RestartableServer(int starts, const ServerOptions& options = {},
                             const RuntimeOptions& runtime = {})
      : ForkedServers(
            starts, []() -> std::unique_ptr<Service> { return std::make_unique<TestService>(); },
            options, runtime) {}
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_RESTARTABLE_SERVER_H_
