// The servers of links_bench: one executor that echoes on a core of its own, and GuidedServer. The
// benchmark asks a GuidedServer for its counts of handshakes, kills it, and shuts it down.

#ifndef VERBENA_BENCHMARKS_LINKS_LINKS_SERVER_H_
#define VERBENA_BENCHMARKS_LINKS_LINKS_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/links/pipe.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/link/limits.h"

namespace verbena::benchmarks {

// Serves on the calling thread, pinned to `core`, until the process is killed. Sleeps while it has
// nothing to do: the servers of all numbers of links share the core.
absl::Status RunLinksServer(const LinkLimits& limits, int core, const Ready& ready);

// The service of all servers of this folder: echoes, streams without end, and answers with
// payloads.
std::unique_ptr<Service> MakeLinksService();

// The handshakes that did not become links, as the server counts them.
struct HandshakeCounts {
  uint64_t failed = 0;   // refused, ended by the client, or closed before its offer
  uint64_t evicted = 0;  // closed to make room for others; before its offer, it counts as both
  uint64_t links_refused = 0;
};

// A server with default options, as a process of its own. The destructor kills it. Move-only. For
// one thread.
class GuidedServer {
 public:
  // Forks, so call it before this process has threads.
  static absl::StatusOr<GuidedServer> Start(const std::string& device, const std::string& address);

  const std::string& address() const { return process_.address(); }
  absl::StatusOr<HandshakeCounts> Count() const;
  // Shuts the server down with that grace. Returns the time until its process had ended.
  absl::StatusOr<Duration> ShutDown(Duration grace) const;

 private:
  // The grace of a shutdown. A negative number asks for the counts instead.
  using Command = int64_t;
  struct Pipes {
    Pipe<Command> commands;
    Pipe<HandshakeCounts> answers;
  };

  GuidedServer(std::unique_ptr<Pipes> pipes, ServerProcess process)
      : pipes_(std::move(pipes)), process_(std::move(process)) {}
  static absl::Status Serve(const std::string& device, const std::string& address,
                            const Pipes& pipes, const Ready& ready);

  std::unique_ptr<Pipes> pipes_;
  ServerProcess process_;
};

// Raises the limit of open descriptors as far as this process may: each link keeps one open.
void RaiseDescriptorLimit();

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_LINKS_SERVER_H_
