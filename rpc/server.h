// Server: serves services on every executor of a runtime.
//
//   HandshakeLimits    bounds of what clients may take by connecting
//   AdmissionOptions   which calls a server starts, and when
//   ServerOptions      these, the address, other bounds, interceptors, dedupe, registration
//   ServerStats        counts of calls, refusals, links and memory
//   Server             starts, tells its address, shuts down
//   RunningHandler     what Shutdown() left running
//
//   MyStore store;
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
//                            Server::Start(*runtime, {&store}, {.address = "0.0.0.0:4000"}));

#ifndef VERBENA_RPC_SERVER_H_
#define VERBENA_RPC_SERVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"

namespace verbena {

// A server's policy for a client over RoCE version 2 or TCP whose GID, an IP address, is not the
// one that it connects from (docs/peers.md).
enum class ClaimedAddress : uint8_t {
  kIgnore,  // not compared
  kLog,     // serves it, and warns in the log, once in ten minutes
  kRefuse,  // PERMISSION_DENIED
};

// HandshakeLimits: how much of a server its clients may take by connecting.
//
// Owned by the caller of Server::Start(), which copies it. Each bound holds for one server, over
// all its executors. Each number is in [1, 2^32 - 1], except that links_per_source may be 0. For
// any other 0, Server::Start() returns INVALID_ARGUMENT and names the field. Over a bound of
// handshakes, the server closes one of those under way (docs/peers.md says which). Over a bound of
// links, it refuses the new link with RESOURCE_EXHAUSTED. Over offers_per_source, it refuses the
// new offer in the same way while it has answered none of the source's offers for longer than a
// second; over offers, if no other source has clearly more of them. Such a refusal has a
// retry_after, at most 10 s, and the client comes again by itself. So does a client whose handshake
// was closed before the server answered it.
struct HandshakeLimits {
  // Handshakes under way. Also never more than a quarter of the descriptors that the process may
  // have (RLIMIT_NOFILE).
  uint32_t handshakes = 1024;
  uint32_t handshakes_per_source = 128;
  // Handshakes whose Hello has come, so that a queue pair is made for them.
  uint32_t offers = 256;
  // offers_per_source is no bound for clients of a FileBootstrap, which names no hosts.
  uint32_t offers_per_source = 64;
  // Links of one runtime from one source address, pending ones included.
  uint32_t links_per_client = 256;
  // Links of one source address, pending ones included. 0, the default: three quarters of
  // LinkLimits::max_links on each executor, and at most half of the descriptors that the process
  // may have (each link keeps one descriptor). The rest is for other addresses. The default does
  // not bound processes of the server's own host, which share everything else with it anyway, nor
  // clients of a FileBootstrap, whose addresses it does not know. Any other value bounds these,
  // too, over all executors together. Set it if many clients share one address behind a NAT, or one
  // /64 of IPv6.
  uint32_t links_per_source = 0;
  // By default the server only warns, since hosts may have a network for storage beside the one
  // that they connect by. kRefuse suits a site where clients connect by the network of their RDMA
  // devices. kRefuse does not stop a client from making the server send to another host if the two
  // addresses cannot be compared: one is IPv4 and the other IPv6, or one is a loopback or
  // link-local address.
  ClaimedAddress claimed_address = ClaimedAddress::kLog;
};

// Bounds of one method; 0 is no bound. A call counts from its arrival to its end.
struct MethodLimits {
  uint32_t max_calls = 0;
  // Bytes of the calls' requests: payloads, and messages that do not fit a frame. A larger request
  // is accepted while no other one counts.
  size_t max_pinned_bytes = 0;
};

// AdmissionOptions: which calls a server starts, and when, if more come than it can serve.
//
// Owned by the caller of Server::Start(), which copies it. Each bound holds on each executor by
// itself. Without any bound set, each call starts when it arrives, and pays nothing. Only while the
// executor lags, calls wait until it has seen which of them are still wanted (docs/peers.md).
//
// With max_running, calls that arrive wait in a queue. The executor starts a few of them, polls for
// more calls, and starts the next few. So it sees how long its queue is, even if handlers never
// suspend. Source addresses take turns, each with one call, and so do the clients of each. Calls of
// the priorities control, normal and background wait in queues of their own. A call that has waited
// for longer than max_queue_age is refused. A call that would wait for longer is refused when it
// arrives. So an overloaded server answers what it can in good time, and refuses the other calls at
// once.
//
// A refusal is RESOURCE_EXHAUSTED with a retry_after and Outcome::kNotExecuted (status.h).
// A refusal never closes a link. ServerStats counts refusals by their bound.
//
//   Server::Start(runtime, {&kv}, {.admission = {.max_running = 64,
//                                                .max_queue_age = 2ms,
//                                                .methods = {{"kv.Kv/Scan", {.max_calls = 4}}}}});
struct AdmissionOptions {
  // Handlers that run at once; further calls wait in the queue. 0, the default: no queue. If no
  // handler ever suspends, one runs at a time anyway, and any number will do. A stream waits in the
  // queue, but does not count once its handler runs. Control calls do not count. The next four need
  // max_running: setting one of them without it is INVALID_ARGUMENT.
  uint32_t max_running = 0;
  // Handlers of one client that run at once. 0, the default: half of max_running, rounded up.
  uint32_t max_running_per_client = 0;
  // Handlers of all clients of one source address that run at once. 0, the default: three quarters
  // of max_running, rounded up, or max_running_per_client if that is more; no bound for clients of
  // a FileBootstrap.
  uint32_t max_running_per_source = 0;
  // Places in the queue, 1 to 65536. Background calls take half of them at most. A client gets a
  // further place while it has fewer places than are free. The clients of one source have three
  // quarters of the places at most; clients of a FileBootstrap have this bound only if
  // max_running_per_source is set. So neither a client nor a source fills the queue.
  uint32_t max_queued = 1024;
  // The longest wait of a call in the queue, at least 1 us.
  Duration max_queue_age = std::chrono::milliseconds(5);
  // Bytes of the requests of one client, and of all clients, counted as in MethodLimits. 0, the
  // default: no bound. A call beyond them is refused at once. A call within them may still wait for
  // memory, as ServerOptions says.
  size_t max_pinned_bytes_per_client = 0;
  size_t max_pinned_bytes = 0;
  // Places for control calls beyond all bounds of calls except their method's. As in the queue, a
  // client gets a further place while it has fewer than are free, and one source has three quarters
  // at most. A control call without such a place counts as a normal one, and so does a control
  // stream. 0: there are no such places. Has an effect only if another bound is set.
  uint32_t control_places = 64;
  // The wait that refusals ask of their callers. Holds for refusals by the bounds of calls in
  // ServerOptions, too.
  Duration retry_after = std::chrono::milliseconds(10);
  // By full name, "package.Service/Method". Server::Start() fails with NOT_FOUND if it serves no
  // such method.
  std::map<std::string, MethodLimits> methods = {};
};

// Owned by the caller of Server::Start(), which copies it. Shares the ownership of the
// interceptors. The service of dedupe.store is not owned, and must outlive the server.
struct ServerOptions {
  // Host and port; port 0 takes a free one.
  std::string address = "127.0.0.1:0";
  // Calls that run, or wait for their turn, at once on one executor, 16384 by default; more are
  // refused with RESOURCE_EXHAUSTED. 0 refuses all. The two bounds below count the same calls.
  uint32_t max_concurrent_calls = 16384;
  // Calls of one client that run at once on one executor, over all its links to it. 0, the default:
  // half of max_concurrent_calls, rounded up.
  uint32_t max_calls_per_client = 0;
  // Calls of all clients of one source address that run at once on one executor. A source address
  // is an IPv4 address, or the /64 of an IPv6 address. A hostile process may claim any number of
  // runtime ids, each of which counts as a client; it cannot choose its address. 0, the default:
  // three quarters of max_concurrent_calls, rounded up, or the bound of a client if that is more.
  // The last quarter is for other addresses. If all clients share one address (one host, one NAT,
  // one /64), max_concurrent_calls gives them that quarter, too. Clients of a FileBootstrap have no
  // such bound by default.
  uint32_t max_calls_per_source = 0;
  // Bytes of one executor's receive memory for the payloads of one client's requests, until their
  // handlers have ended, and longer if these keep them; a request beyond them waits for memory. A
  // single payload above the bound is accepted when the client holds nothing else. 0, the default:
  // half of LinkLimits::memory.receive_bytes.
  size_t max_bytes_per_client = 0;
  // Bytes of one executor's receive memory for the payloads of requests of all clients of one
  // source address. Landings that were granted to them count, and take at most half of the bound,
  // or LeaseLimits::granted_bytes_per_client if that is more. 0, the default: three quarters of the
  // receive memory, or max_bytes_per_client if that is more; all of it for clients of a
  // FileBootstrap. Set it to LinkLimits::memory.receive_bytes if all clients share one address.
  size_t max_bytes_per_source = 0;
  // Bytes of one executor's send memory for the responses of one client: buffers that its handlers
  // have from ServerContext::AllocateBuffer(), until their memory is free again, and replies that
  // do not fit a frame. A call waits for more. A single buffer above the bound is given when the
  // client holds nothing else. 0, the default: half of LinkLimits::memory.send_bytes. If a call's
  // payload is all that its client has of this memory, the memory for the call's large reply comes
  // beyond the bound, for one call of each source at a time. Replies that fit a frame and wait for
  // room do not count. Each of max_calls_per_client calls takes at most LinkLimits::eager_bytes for
  // such a reply, and about as much for its request, since larger requests are freed when the wait
  // begins.
  size_t max_response_bytes_per_client = 0;
  // Bytes of one executor's send memory for the responses of all clients of one source address. 0,
  // the default: three quarters of the send memory, or max_response_bytes_per_client if that is
  // more; all of it for clients of a FileBootstrap.
  size_t max_response_bytes_per_source = 0;
  // The longest time that a call waits for payload memory, also if a bound of its client or source
  // makes it wait. By default it is 5 s. A call that waits longer fails with RESOURCE_EXHAUSTED. A
  // call with a deadline waits at most seven eighths of its remaining time.
  Duration memory_wait = std::chrono::seconds(5);
  // How long a response waits for a client that takes nothing. Then the link closes. If the client
  // takes other frames meanwhile, the link closes only this long after the call's deadline, or
  // after the response was ready if that is later. A refusal of a call waits at most twice as long,
  // even if the client takes other refusals.
  Duration response_grace = std::chrono::seconds(30);
  // Bounds of what clients may take by connecting.
  HandshakeLimits handshakes = {};
  // The most metadata that a call may bring, and the most trailing metadata of an answer, 0 to
  // Metadata::kMaxBytes; 8 KiB by default. A call with more is refused with RESOURCE_EXHAUSTED.
  size_t max_metadata_bytes = 8 * 1024;
  // Run around each call that the server admits, the first outermost (interceptor.h). Empty by
  // default; none may be null.
  std::vector<std::shared_ptr<ServerInterceptor>> interceptors = {};
  // A queue ahead of the handlers, priorities, and bounds by method (AdmissionOptions). Without
  // any, the default, each call starts when it arrives, unless its executor lags.
  AdmissionOptions admission = {};
  // Results of methods marked `dedupe` that are kept for repeated requests (dedupe.h).
  DedupeOptions dedupe = {};
  // Enters the server into a directory, where channels find it (resolver.h). By default it does
  // not register. Start() does not wait until it is there: ServerStats::registered tells.
  RegistrationOptions registration = {};
  // How long Server::Shutdown() goes on serving as before, 0 or more: new links, and calls. During
  // this time the server is out of its directory, and its process's /readyz (admin.h) says 503, so
  // that whoever sends it clients sends them elsewhere. 0, the default: it does not wait.
  // Kubernetes removes a pod from its services within a few seconds.
  Duration drain_delay = std::chrono::seconds(0);
};

// One budget of payload memory, in bytes, now.
struct ServerMemory {
  size_t budget = 0;
  size_t in_use = 0;  // in whole blocks; about the sum of the next three
  size_t by_handlers = 0;
  size_t granted = 0;       // to clients, for payloads of requests to come
  size_t in_transfers = 0;  // READs and WRITEs that are under way
  size_t waiting = 0;       // calls
  uint64_t waits = 0;       // of calls, so far
};

// Calls that were refused because of overload, by the bound that refused them.
struct ServerRefusals {
  uint64_t executor = 0;  // ServerOptions::max_concurrent_calls
  uint64_t client = 0;    // max_calls_per_client
  uint64_t source = 0;    // max_calls_per_source
  uint64_t method = 0;    // AdmissionOptions::methods
  uint64_t bytes = 0;     // pinned bytes of all, a client or a method
  uint64_t queue = 0;     // AdmissionOptions::max_queued
  uint64_t age = 0;       // AdmissionOptions::max_queue_age
};

// Deduplicated calls (dedupe.h).
struct ServerDedupe {
  size_t results = 0;     // kept now
  size_t bytes = 0;       // of them
  uint64_t repeated = 0;  // requests that got the result of an earlier one, or waited for it
  uint64_t unproven = 0;  // requests that were refused, since the call may have run before
};

// Sums over the executors.
struct ServerStats {
  uint64_t calls = 0;               // handlers started
  uint64_t failures = 0;            // calls answered with a failed Status, refused ones included
  uint64_t refused = 0;             // not started: unknown method, overload, shutting down
  ServerRefusals refusals;          // for overload
  size_t queued = 0;                // calls that wait for their turn now
  uint64_t given_up = 0;            // ended as they waited: cancelled, late, or their link was lost
  uint64_t memory_refused = 0;      // waits for memory that a bound of client or source ended
  uint64_t handshakes_failed = 0;   // no Hello in time, a wrong one, or refused by a bound
  uint64_t handshakes_evicted = 0;  // closed to make room for others
  uint64_t links_refused = 0;       // over a bound of their client or source address
  uint64_t payloads_written = 0;  // requests whose payload lay in a landing that was granted ahead
  size_t granted_bytes = 0;       // memory that clients hold now for payloads of requests to come
  size_t idle_calls = 0;          // kept now, with their messages, for calls to come
  ServerMemory receive_memory;    // payloads of requests
  ServerMemory send_memory;       // payloads of responses
  ServerDedupe dedupe;
  // The server is in its directory (ServerOptions::registration), as far as is known. False soon
  // after its entry must have ended, and while another server with its name has taken it over.
  bool registered = false;
};

// Handlers of one method that Shutdown() left running.
struct RunningHandler {
  std::string method;  // "package.Service/Method"
  uint32_t count = 0;
};

// Serves a list of services at one address until it is destroyed. Its user owns it.
//
// Start() listens at once; address() tells where, with the port that was bound. Each link goes to
// the executor with the fewest links, unless the client asks for another (ChannelOptions).
// Shutdown() takes no new link and tells the clients (GOAWAY). During its grace running calls may
// end. Calls that a client had sent before it heard of the GOAWAY still begin. Then Shutdown()
// refuses new calls, cancels the running ones, and closes every link. It does not wait for a
// handler that ignores its cancellation: the destructor does. Start, Shutdown and the destructor
// must be called on a thread that runs no executor. The runtime and the services must outlive the
// server.
//
//   for (const RunningHandler& left : server->Shutdown(std::chrono::seconds(5))) {
//     … left.count handlers of left.method still run …
//   }
//
//   precondition                                          how it is checked      test
//   no service is null                                    INVALID_ARGUMENT       unary_test
//   the runtime outlives the server                       a check aborts         runtime_test
//   the services outlive the server                       not checked
//   Start, Shutdown, ~Server on no executor's thread      a check aborts         runtime_test
class VERBENA_EXPORT Server {
 public:
  // `services` are borrowed, and must outlive the server.
  //   ALREADY_EXISTS: a service is given twice, or two methods have the same id.
  //   FAILED_PRECONDITION: the port is taken; the options ask for a registration in etcd, and the
  //     program does not link etcd's client (etcd.h).
  //   INVALID_ARGUMENT: the address is no host:port; a field of `options` is out of its range (in
  //     handshakes: 0, except links_per_source; drain_delay: below 0); a service or an interceptor
  //     is null; or registration is wrong.
  //   NOT_FOUND: AdmissionOptions::methods names a method that no service has.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Runtime& runtime,
                                                       const std::vector<Service*>& services,
                                                       const ServerOptions& options = {});
  // Ends as Shutdown() does, without drain_delay and grace, if that was not called. Waits until the
  // last handler has ended. The log names the handlers that it waits for, at first and every ten
  // seconds.
  ~Server();

  const std::string& address() const;
  // From its first moment, /readyz (admin.h) says that the server is not ready. Takes the server
  // out of its directory, if it is registered; if the directory does not answer within half a
  // second, the entry goes when RegistrationOptions::ttl is over. Goes on serving for
  // ServerOptions::drain_delay. Then gives the handlers on all executors `grace` to end, and then
  // cancels them. Calls that arrive in the first second of the grace still run; later ones fail
  // with UNAVAILABLE and Outcome::kNotExecuted, and so do those whose handlers have not begun when
  // the grace is over. A client that heeds the GOAWAY makes none, so that none of its calls fails.
  // All links are closed when it returns, at most a second after the grace, however slow a client
  // or a handler is. Returns the handlers that ignore their cancellation and still run; they use
  // the services and the server until they end. May be called again to wait for them.
  std::vector<RunningHandler> Shutdown(Duration grace);
  // From any thread; never blocks an executor. On a thread that runs no executor it waits for each
  // executor's current values. On an executor, the others' values are those of the last time that
  // somebody asked.
  ServerStats stats() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_H_
