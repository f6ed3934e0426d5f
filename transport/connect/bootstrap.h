// Bootstrap: how two processes find each other and exchange what their queue pairs need to connect.
//
// A bootstrap gives message streams: ordered, reliable, bounded messages between two executors. TCP
// is the default; in-process pairs serve tests and simulation. The handshake (handshake.h) runs
// over a stream; then the stream stays open as long as the link does, since its end is the first
// sign that the peer is gone.
//
// Each await resumes on the executor of the coroutine that awaits it. A stream is used from one
// executor at a time, with at most one Send() and one Receive() in flight. Blocking and resolving
// happen on the bootstrap's own thread.

#ifndef VERBENA_TRANSPORT_CONNECT_BOOTSTRAP_H_
#define VERBENA_TRANSPORT_CONNECT_BOOTSTRAP_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

// The longest message; a longer one from the peer ends the stream with INVALID_ARGUMENT.
inline constexpr size_t kMaxBootstrapMessageBytes = 64 * 1024;

// For implementations of MessageStream: INVALID_ARGUMENT if `bytes` is more than
// kMaxBootstrapMessageBytes.
VERBENA_EXPORT absl::Status CheckBootstrapMessage(size_t bytes);

namespace internal {

// The awaits of a stream that this side has closed return it.
VERBENA_EXPORT absl::Status ClosedHere();

}  // namespace internal

class MessageStream {
 public:
  // Closes it; awaits in flight must have ended or been abandoned.
  virtual ~MessageStream() = default;

  virtual Task<absl::Status> Send(std::string message) = 0;
  // UNAVAILABLE when the peer has closed it or is gone. Waits as long as it takes, or until
  // cancelled.
  virtual Task<absl::StatusOr<std::string>> Receive() = 0;
  // Ends the stream in both directions; awaits in flight return CANCELLED. Must not throw:
  // destructors call it.
  virtual void Close() = 0;
  // For messages and logs, e.g. "127.0.0.1:4000".
  virtual const std::string& peer() const = 0;
  // The peer's address without the parts that differ between connections of one host: servers bound
  // what one source may take. An IPv4 address, or the /64 of an IPv6 address. By default peer(),
  // which suits streams whose peer() is the same for all connections of a host. If peer() differs,
  // each connection counts as a source of its own.
  virtual const std::string& source() const { return peer(); }
  // True when the peer is known to be a process of this host; a hint, not a proof.
  virtual bool same_host() const { return false; }
  // False if source() names no host, so that a bound of one source would be a bound of all clients:
  // a server then has no such bound by default.
  virtual bool names_source() const { return true; }
  // The numeric IP address of this end; empty if it has none. A link prefers this address of its
  // port, if the port has it: the peer has a route to it.
  virtual std::string own_address() const { return ""; }
};

class MessageListener {
 public:
  virtual ~MessageListener() = default;

  // CANCELLED after Close().
  virtual Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Accept() = 0;
  // The address is free when this returns; connections that nobody accepted are closed.
  virtual void Close() = 0;
  // The address that clients connect to, with the port that was really bound.
  virtual const std::string& address() const = 0;
};

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  // `target` is a host and port, "storage-7:4000" or "[::1]:4000". UNAVAILABLE when nobody listens.
  virtual Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) = 0;
  // `address` as above; port 0 takes a free one. FAILED_PRECONDITION names a port that is taken.
  virtual absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) = 0;
};

// Name -> address.
using StaticAddresses = std::map<std::string, std::string>;

// Each line has a name and an address, separated by blanks; '#' begins a comment. INVALID_ARGUMENT
// names the line that has another form, or that repeats a name.
VERBENA_EXPORT absl::StatusOr<StaticAddresses> ParseStaticAddresses(const std::string& text);

// StaticBootstrap: peers by fixed names, from a table that the program or its configuration has.
//
// For clusters whose members are known beforehand and that want no resolver in the way: channels
// and servers use names, the table says what each stands for, and another bootstrap connects. All
// processes can be given the same table. Immutable. The other bootstrap must outlive it.
//
//   VERBENA_ASSIGN_OR_RETURN(StaticAddresses addresses, ParseStaticAddresses(
//       "# name     address\n"
//       "storage-7  10.0.0.7:4000\n"));
//   StaticBootstrap bootstrap(*tcp, addresses);
//   Runtime::Start({.use_bootstrap = &bootstrap});   // Channel(*runtime, "storage-7")
class VERBENA_EXPORT StaticBootstrap final : public Bootstrap {
 public:
  StaticBootstrap(Bootstrap& below, StaticAddresses addresses);

  // NOT_FOUND lists the names of the table. Otherwise fails as the other bootstrap does.
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override;
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override;

 private:
  absl::StatusOr<std::string> AddressOf(const std::string& name) const;

  Bootstrap& below_;
  const StaticAddresses addresses_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CONNECT_BOOTSTRAP_H_
