// ServerProcess: the serving side of a benchmark, as a process of its own.
//
//   absl::StatusOr<ServerProcess> server = ServerProcess::Start("rpc_bench", [&](const auto& ready)
//   {
//     return Serve(…, ready);  // tells `ready` its address once
//   });
//   Connect(server->address());

#ifndef VERBENA_BENCHMARKS_HARNESS_SERVER_PROCESS_H_
#define VERBENA_BENCHMARKS_HARNESS_SERVER_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks {

// The server calls it once, with the address at which it can be reached.
using Ready = std::function<void(const std::string& address)>;

// Owns the child process: the destructor kills it, and the kernel does if this thread ends first.
// Move-only. Owned by one thread.
class ServerProcess {
 public:
  // Forks, so call it before this process has threads. `serve` runs in the child, which prints a
  // failure under the name `program` and ends. Returns once the child has told its address;
  // INTERNAL if it ended before.
  static absl::StatusOr<ServerProcess> Start(
      const std::string& program, const std::function<absl::Status(const Ready& ready)>& serve);

  ServerProcess(ServerProcess&& other) noexcept;
  ServerProcess& operator=(ServerProcess&& other) = delete;
  ~ServerProcess();

  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }

 private:
  ServerProcess(pid_t pid, std::string address);

  pid_t pid_;
  std::string address_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_SERVER_PROCESS_H_
