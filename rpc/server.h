// Server: serves services on every executor of a runtime.
//
// Start() listens at once; address() tells where, with the port that was bound. Clients' links are
// spread over the executors as the clients ask. Shutdown() refuses new calls, lets running ones end
// within a grace, then cancels them. Start, Shutdown and the destructor are called on a thread that
// runs no executor. The runtime and the services outlive the server.
//
//   MyStore store;
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
//                            Server::Start(*runtime, {&store}, {.address = "0.0.0.0:4000"}));
//   …
//   server->Shutdown(std::chrono::seconds(5));

#ifndef VERBENA_RPC_SERVER_H_
#define VERBENA_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server_context.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/coro/clock.h"

namespace verbena {

struct ServerOptions {
  // Host and port; port 0 takes a free one.
  std::string address = "127.0.0.1:0";
  // Calls that run at once on one executor; more are refused with RESOURCE_EXHAUSTED.
  uint32_t max_concurrent_calls = 16384;
};

// Sums over the executors.
struct ServerStats {
  uint64_t calls = 0;     // handlers started
  uint64_t failures = 0;  // calls answered with a failed Status, refused ones included
  uint64_t refused = 0;   // not started: unknown method, overload, shutting down
  uint64_t handshakes_failed = 0;
  uint64_t payloads_written = 0;  // requests whose payload lay in a landing that was granted ahead
  size_t granted_bytes = 0;       // memory that clients hold now for payloads of requests to come
};

class Server {
 public:
  // ALREADY_EXISTS when a service is given twice; FAILED_PRECONDITION names a port that is taken.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Runtime& runtime,
                                                       const std::vector<Service*>& services,
                                                       const ServerOptions& options = {});
  // Shutdown() without grace, if it was not called.
  ~Server();

  const std::string& address() const;
  // Returns when no handler runs and no link is open any more.
  void Shutdown(Duration grace);
  ServerStats stats() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_H_
