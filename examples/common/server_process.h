// ServerProcess: a server of an example, or another program, as a child process.
//
// The child has a process group of its own, so that Ctrl-C at the terminal reaches the demo alone,
// which then stops the child in order. If the demo is killed, the kernel ends the child. The
// destructor kills a child that still runs. One thread: the kernel also ends the child when the
// thread that started it ends.
//
//   absl::StatusOr<std::unique_ptr<ServerProcess>> server =
//       ServerProcess::Start("/usr/bin/kv_server", {"--address=127.0.0.1:0"});
//   absl::Status ready = (*server)->WaitUntilReady(signals);
//   verbena::Channel channel(runtime, (*server)->address());

#ifndef VERBENA_EXAMPLES_COMMON_SERVER_PROCESS_H_
#define VERBENA_EXAMPLES_COMMON_SERVER_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/signals.h"

namespace examples {

class ServerProcess {
 public:
  // Starts the program at `path`. The child writes to this process's standard error. `namespaces`
  // (CLONE_NEW…) are new ones for the child, as in a container; without privileges it gets one of
  // users, too, in which it is the same user.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(
      const std::string& path, const std::vector<std::string>& arguments, int namespaces = 0);
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess();

  // Reads the line with the server's address. UNAVAILABLE if the server ended instead; the message
  // is empty if it exited by itself, because it has then said what was wrong. CANCELLED if a signal
  // came, DEADLINE_EXCEEDED if the line did not come within 30 seconds, INTERNAL for another line.
  absl::Status WaitUntilReady(StopSignals& signals);

  // Asks the server to end, and waits. Kills it after 30 seconds, or when a signal comes meanwhile.
  // Fails if the server had to be killed, had ended before, or did not exit with 0.
  absl::Status Stop(StopSignals& signals);

  // Waits for a program that ends by itself. Fails if it does not exit with 0. Kills it and returns
  // CANCELLED if a signal comes.
  absl::Status WaitForEnd(StopSignals& signals);

  // OK while the process runs, otherwise UNAVAILABLE with the way it ended.
  absl::Status CheckRunning();

  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }

 private:
  ServerProcess(std::string name, pid_t pid, int pidfd, int output)
      : name_(std::move(name)), pid_(pid), pidfd_(pidfd), output_(output) {}

  // Whether the process has ended, by waitpid() with `options`.
  bool Reap(int options);
  absl::Status HowItEnded() const;

  const std::string name_;
  const pid_t pid_;
  const int pidfd_;   // readable once it has ended
  const int output_;  // its standard output
  std::string address_;
  std::optional<int> wait_status_;  // once it has ended
};

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_SERVER_PROCESS_H_
