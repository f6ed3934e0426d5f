// Bootstrapping over TCP: TcpBootstrap, TcpConnector for one attempt to reach a target, and
// TcpAcceptor with its TcpListener.
//
// The program or its Runtime owns the bootstrap. Sockets live on its IoThread, and coroutines
// resume where they awaited.

#ifndef VERBENA_TRANSPORT_CONNECT_TCP_BOOTSTRAP_H_
#define VERBENA_TRANSPORT_CONNECT_TCP_BOOTSTRAP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class IoThread;
class NameLookups;

}  // namespace verbena::internal

namespace verbena {

// TcpBootstrap: the default bootstrap, over TCP.
//
// A TcpBootstrap owns one thread, which sockets keep busy; executors only post to it, and
// coroutines resume where they awaited. Names are looked up on threads of the process: one whose
// lookup hangs delays no other. A dead peer host is seen after 25 s without a word (keepalive), a
// dead peer process at once.
//
// Safe from any thread. Destroying it closes its streams and listeners: awaits in flight, and later
// ones, return CANCELLED. The destructor waits for its thread, but for no lookup. An executor that
// awaits here must live until its awaits have ended or were abandoned.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<TcpBootstrap> bootstrap, TcpBootstrap::Create());
//   auto stream = co_await bootstrap->Connect("storage-7:4000");
class VERBENA_EXPORT TcpBootstrap final : public Bootstrap {
 public:
  // RESOURCE_EXHAUSTED when there is no thread or descriptor to be had.
  static absl::StatusOr<std::unique_ptr<TcpBootstrap>> Create();
  // For tests: with lookups of their own, which outlive it.
  static absl::StatusOr<std::unique_ptr<TcpBootstrap>> Create(internal::NameLookups& lookups);
  ~TcpBootstrap() override;

  // Tries each address that the host has, in the resolver's order, and takes the first that
  // answers: each begins 250 ms after the one before, or earlier for a short deadline.
  // INVALID_ARGUMENT if `target` is no address. Takes as long as TCP does: put a deadline around
  // it.
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override;
  // A host name is resolved before this returns; 0.0.0.0 and [::] listen everywhere, the latter for
  // IPv4 too.
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override;

 private:
  TcpBootstrap(std::shared_ptr<internal::IoThread> io, internal::NameLookups& lookups);

  const std::shared_ptr<internal::IoThread> io_;
  internal::NameLookups& lookups_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CONNECT_TCP_BOOTSTRAP_H_
