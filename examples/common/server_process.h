// ServerProcess: a server of an example, or another program, as a child process.
//
// It is in a process group of its own, so that Ctrl-C at the terminal reaches the demo alone, which
// then ends it in order; should the demo be killed, the kernel ends it. Stop() ends it by its
// process id; the destructor kills what still runs. One thread: the kernel takes the end of the
// thread that started it for the end of the parent.
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
  // Starts the program at `path`. Its standard error is ours.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(
      const std::string& path, const std::vector<std::string>& arguments);
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess();

  // Reads the line that tells its address. UNAVAILABLE when it ended instead, with an empty message
  // if it has said itself what was wrong; CANCELLED when a signal came; DEADLINE_EXCEEDED when
  // nothing came for 30 seconds.
  absl::Status WaitUntilReady(StopSignals& signals);

  // Asks it to end, and waits; after a grace of 5 seconds, or when a signal comes meanwhile, kills
  // it. Fails when it had to be killed, had ended before, or did not exit with 0.
  absl::Status Stop(StopSignals& signals);

  // For a program that ends by itself: waits for that. Kills it when a signal comes, which gives
  // CANCELLED. Fails when it did not exit with 0.
  absl::Status WaitForEnd(StopSignals& signals);

  // OK while it runs, else how it ended.
  absl::Status CheckRunning();

  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }

 private:
  ServerProcess(std::string name, pid_t pid, int pidfd, int output)
      : name_(std::move(name)), pid_(pid), pidfd_(pidfd), output_(output) {}

  // Takes note of its end; `options` as for waitpid.
  bool Reap(int options);
  absl::Status HowItEnded() const;

  const std::string name_;
  const pid_t pid_;
  const int pidfd_;   // readable once it has ended
  const int output_;  // what it prints
  std::string address_;
  std::optional<int> wait_status_;  // once it has ended
};

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_SERVER_PROCESS_H_
