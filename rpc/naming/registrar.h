// Servers in a directory, a service that keeps sets of them: Directory, Registrar for one server's
// entry, and MakeRegistrar().
//
// A Server owns its Registrar, whose Tasks run on one executor. One directory, etcd, for the whole
// process.

#ifndef VERBENA_RPC_NAMING_REGISTRAR_H_
#define VERBENA_RPC_NAMING_REGISTRAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/rpc/resolver.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// A server as a directory keeps it. Channels use `server`; the rest is for people and tools.
struct ServerEntry {
  static constexpr size_t kMaxDevices = 64;

  ResolvedServer server;  // its name is not empty; weight 0: takes no calls now
  std::vector<std::string> devices;
  uint32_t executors = 0;
};

// INVALID_ARGUMENT: the entry breaks a rule for names, addresses, zones or weights; the message
// says which.
VERBENA_EXPORT absl::Status CheckServerEntry(const ServerEntry& entry);

// Keeps one server's entry in a directory. Its Tasks run on one executor.
class Registrar {
 public:
  virtual ~Registrar() = default;
  // Enters the server and keeps it there, until it is cancelled. Tries again while the directory
  // cannot be reached, and logs why.
  virtual Task<void> Run() = 0;
  // After Run() has ended: removes the entry. Ends with an error when it is cancelled or the
  // directory cannot be reached; then the entry goes when its time is over.
  virtual Task<absl::Status> Remove() = 0;
  // Whether the entry is there, as far as is known: not once its time must be over, nor while
  // another server with the same name has it. Any thread.
  virtual bool registered() const = 0;
};

// Directory: the services that keep sets of servers which change by themselves, as plug-ins.
//
// //rpc knows etcd:// targets, but does not link the client of etcd. //rpc:etcd links it, and
// enters itself here before main() (rpc/naming/etcd/directory.cc). Any thread.
class VERBENA_EXPORT Directory {
 public:
  virtual ~Directory() = default;
  virtual std::shared_ptr<Resolver> MakeResolver(EtcdTarget target) const = 0;
  virtual std::unique_ptr<Registrar> MakeRegistrar(EtcdTarget target, ServerEntry entry,
                                                   Duration ttl) const = 0;

  // `etcd` lives for ever. Called once at most.
  static void Enter(const Directory& etcd);
  // FAILED_PRECONDITION: the program does not link //rpc:etcd.
  static absl::StatusOr<const Directory*> Etcd();
};

// The members of a server that its entry tells.
struct RegisteredServer {
  std::string address;  // where it listens
  std::vector<std::string> devices;
  uint32_t executors = 0;
};

// MakeRegistrar: keeps a server in the directory that its options name.
//
// nullptr: the options have no target. INVALID_ARGUMENT: an option is out of its range, the target
// is none of a directory, or no client could use the address. FAILED_PRECONDITION: the program does
// not link the directory.
VERBENA_EXPORT absl::StatusOr<std::unique_ptr<Registrar>> MakeRegistrar(
    const RegistrationOptions& options, RegisteredServer server);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_REGISTRAR_H_
