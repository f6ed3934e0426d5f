// LocalBootstrap: a bootstrap inside one process, without sockets or threads.
//
// For tests, simulation, and servers whose clients live beside them. Clients find listeners by name
// in a LocalNetwork. Two ends may be on one executor, on two executors of one thread (then
// everything happens in the order of the calls, the same each time), or on different threads.
//
// A stream holds at most kStreamMessages on their way; then Send() waits. A listener holds at
// most kBacklog connections that nobody has accepted; then Connect() returns UNAVAILABLE.
//
//   LocalNetwork network;
//   LocalBootstrap server(network, "server"), client(network, "client");
//   auto listener = server.Listen("storage:0");   // (*listener)->address() is "storage:1"
//   auto stream = co_await client.Connect("storage:1");

#ifndef VERBENA_TRANSPORT_CONNECT_LOCAL_BOOTSTRAP_H_
#define VERBENA_TRANSPORT_CONNECT_LOCAL_BOOTSTRAP_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {
class LocalNames;
}

// The names in use. Safe from any thread. Bootstraps, listeners and streams share the names, and
// may outlive this object.
class VERBENA_EXPORT LocalNetwork {
 public:
  static constexpr size_t kStreamMessages = 64;
  static constexpr size_t kBacklog = 128;

  LocalNetwork();
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

 private:
  friend class LocalBootstrap;
  const std::shared_ptr<internal::LocalNames> names_;
};

// One program's access to a network. Safe from any thread; what it made may outlive it.
class VERBENA_EXPORT LocalBootstrap final : public Bootstrap {
 public:
  // `name` is how peers see this side in MessageStream::peer().
  explicit LocalBootstrap(LocalNetwork& network, std::string name = "local");
  ~LocalBootstrap() override;

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override;
  // Any name that is not empty; one that ends in ":0" gets the network's next free number instead.
  // FAILED_PRECONDITION if the name is taken.
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override;

 private:
  const std::shared_ptr<internal::LocalNames> names_;
  const std::string name_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CONNECT_LOCAL_BOOTSTRAP_H_
