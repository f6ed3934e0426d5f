// Channel: a client's way to a server, or to a set of servers: a target, resolved to links.
//
// Usable at once and from every executor of its runtime. Each executor connects on its first call;
// there, channels with the same target, server_executor and server_key share one connection. No
// lock is taken. A stub is made with a channel that is there already, and keeps a pointer into it:
// the channel must outlive its stubs and their calls.
//
// A target that names a set of servers ("static:a:4000,b:4000") makes each executor connect to all
// of them on its first call, or to a subset, and choose one for each call (policy.h). A server
// that joins the set is connected ahead. One that leaves takes no new call, and the calls on it run
// to their end. One set takes at most three quarters of an executor's links
// (LinkLimits::max_links); servers beyond that are not connected, and Servers() and the log say so.
//
//   Channel channel(*runtime, "storage-7:4000");
//   Store::Stub store(channel);
//   absl::StatusOr<GetReply> reply = co_await store.Get(request, {.deadline = 5ms});
//
//   precondition                                      how it is checked     test
//   options are in range                              a check aborts        balancing_health_test
//   server_executor and server_key are not both set   a check aborts        connection_test
//   no interceptor is null                            a check aborts        connection_test
//   a Resolver serves one channel                     a check aborts        resolved_set_test
//   the process is no fork of the runtime's           a check aborts        two_users_test
//   the target is well-formed                         INVALID_ARGUMENT      target_test
//   used on the runtime's executors                   FAILED_PRECONDITION
//   made before its stubs, and outlives their calls   not checked

#ifndef VERBENA_RPC_CHANNEL_H_
#define VERBENA_RPC_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

namespace internal {
class ClientChannel;
}  // namespace internal

// ChannelOptions hold for all calls of one channel, which takes a copy, and shares the ownership of
// the resolver and of the interceptors.
struct ChannelOptions {
  // The server's executor to call, by number, modulo how many the server has. -1: server_key
  // decides. If server_key is 0, the server chooses its executor with the fewest links.
  int server_executor = -1;
  // Not 0: the server's executor, by key. Channels with equal keys, of any client, reach the same
  // executor of a server. Setting both server_executor and server_key aborts.
  uint64_t server_key = 0;
  // The deadline of each call whose CallOptions give none, from its start: `{.default_deadline =
  // 5s}`. Such a call may still say Deadline::None().
  Deadline default_deadline = {};
  // The most metadata that a call may send, 0 to Metadata::kMaxBytes; 8 KiB by default. More fails
  // the call with RESOURCE_EXHAUSTED. A server has a bound of its own
  // (ServerOptions::max_metadata_bytes).
  size_t max_metadata_bytes = 8 * 1024;
  // Run around each call of the channel, the first outermost (interceptor.h). Empty by default;
  // none may be null.
  std::vector<std::shared_ptr<ClientInterceptor>> interceptors = {};
  // How a call finds its server, if the target names a set (policy.h). Otherwise ignored.
  Balancing balancing = Balancing::kRoundRobin;
  // Not empty: while servers of this zone (ResolvedServer::zone) are ready, calls go to these
  // alone. "" by default: zones do not matter.
  std::string zone = "";
  // Not null: gives the set of servers (resolver.h). A resolver serves one channel: a check aborts
  // if another channel has had it. The target is then only a name in messages. By default the
  // target says where the set comes from.
  std::shared_ptr<Resolver> resolver = nullptr;
  // If a set has more servers than this, each executor connects to this many: up to
  // Resolver::kMaxServers; 0, the default: to all. The client's random id and the servers' names
  // choose them, so that many clients cover the servers evenly, and few links change with the set.
  // While one of them cannot be reached, another one takes its place, up to twice as many; while no
  // server at all is ready, the client looks on through the whole set. With a zone: this many in
  // it, and this many of the others. A check aborts if it is set with kPickFirst, which needs one
  // server, or with kRouteKey, whose clients must agree.
  uint32_t subset_size = 0;
  // How many executors of each server an executor has links to, 1 to 64: to those numbered from 0,
  // modulo how many the server has. With kRouteKey, a key then belongs to one executor of one
  // server; clients agree if they set the same number. More than 1 needs server_executor and
  // server_key to be unset. For servers that keep state per executor. Each costs a link.
  uint32_t executors_per_server = 1;
  // Which servers of a set take no calls for a while, and when (policy.h). By default none.
  EjectionOptions ejection = {};
  // Retries, hedging, time limits and wait_for_ready, by method (policy.h). Empty by default: each
  // call has one attempt.
  ServiceConfig service_config = {};
};

class VERBENA_EXPORT Channel {
 public:
  // `target` is one of these. `address` stands for host:port ("storage-7:4000", "[::1]:4000"), or
  // for whatever RuntimeOptions::use_bootstrap takes.
  //
  //   address                  one server
  //   static:address,address   a set of servers; "address|address" is one with two addresses
  //   dns:///name:port         one server for each address that the name has now: looked up again
  //                            every 30 s, and when a server cannot be reached
  //   file:///absolute/path    a file with a line for each server, `address|address weight=3
  //                            zone=a name=storage-7`, all but the first optional; '#' begins a
  //                            comment. It is read again twice a second. If a line is wrong, the
  //                            log names it, and the last good set stays. Replace the file by
  //                            rename().
  //   etcd://host:port,…/prefix
  //                            the servers that etcd has under prefix/, where servers register
  //                            (ServerOptions::registration). Changes are heard of at once. While
  //                            etcd cannot be reached the last good set stays. Over TLS:
  //                            etcds://host:port/prefix?ca=/path&cert=/path&key=/path, with as
  //                            many of the files as needed. The program links the
  //                            client of etcd (etcd.h); otherwise calls fail with
  //                            FAILED_PRECONDITION.
  //
  // Nothing is connected here, and a target that is wrong fails the first call with
  // INVALID_ARGUMENT. `runtime` must outlive every use but the destructor. A check aborts if
  // `options` sets both server_executor and server_key, or a field is out of its range, also one of
  // service_config.
  Channel(Runtime& runtime, std::string target, ChannelOptions options = {});
  // On any thread, also while or after the runtime is destroyed. Closes the links that no other
  // channel uses.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Connects this executor now, instead of in the first call; with a set of servers, waits for the
  // first that answers, and the others may follow (Servers()). UNAVAILABLE: nobody answers.
  // INVALID_ARGUMENT: the target does not parse. RESOURCE_EXHAUSTED or PERMISSION_DENIED: the
  // server refuses. FAILED_PRECONDITION: this thread runs no executor of the runtime. Errors of
  // Connect(), AllocateBuffer(), DeviceName() and Lend() have Outcome::kNotExecuted.
  VERBENA_CORO_WRAPPER Task<absl::Status> Connect();
  // Connects as a call with `options` does: with their wait_for_ready it waits for a server that is
  // down, until their deadline or that of the channel, for the server of their route_key.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> Connect(
      const CallOptions& options);

  // Memory for payloads of calls on this channel, which it connects if need be: `bytes` of it,
  // page-aligned. While the budget (LinkLimits::memory.send_bytes) is used up, it waits at most
  // 10 s, and then fails with RESOURCE_EXHAUSTED. It waits at most seven eighths of the time until
  // the deadline of the Task that awaits it. The runtime must outlive the Buffer. With a set of
  // servers, the memory serves for calls to each server that is reached over the same device as the
  // one that is ready now; over another device, a call with it fails with FAILED_PRECONDITION.
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<Buffer>> AllocateBuffer(size_t bytes);
  // The same for a call with `options`. This connects as Connect(options) does, and takes no longer
  // than their deadline, or the channel's, and that of the Task allow. ServiceConfig is by method,
  // and does not reach it.
  //
  //   CallOptions options{.deadline = 30s, .wait_for_ready = true};
  //   VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel.AllocateBuffer(bytes, options));
  //   options.request_payload = std::move(block);
  //   co_return (co_await stub.Put(request, std::move(options))).status();
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<Buffer>> AllocateBuffer(
      size_t bytes, const CallOptions& options);

  // The device that payloads of calls on this channel move over from this executor, for memory of
  // Runtime::RegisterMemory(). Connects if need be. With a set of servers: the device of one that
  // is ready.
  Task<absl::StatusOr<std::string>> DeviceName();

  // Lends memory of AllocateBuffer() or Runtime::RegisterMemory() to the server's executor that
  // this one is connected with; connects if need be (memory.h). Waits for a memory window until the
  // deadline of the Task that awaits it. A loan belongs to one server, so FAILED_PRECONDITION if
  // the target names a set: make a channel to one of Servers().
  Task<absl::StatusOr<Loan>> Lend(BufferView view, LeaseAccess access);
  // Memory that the server lends to this executor, by a handle of a reply (memory.h).
  // INVALID_ARGUMENT for a handle that names nothing, FAILED_PRECONDITION if this executor no
  // longer has the link over which the memory was lent, or if the target names a set.
  absl::StatusOr<RemoteMemory> Remote(const RemoteMemoryHandle& handle);

  // The servers of the set as this executor sees them, in the set's order: empty until the first
  // use on this executor has resolved the target. With one server: that one. To wait until a set is
  // complete, call Connect(), and then this again until each server is kReady, with
  // ServersChanged() in between. FAILED_PRECONDITION: this thread runs no executor of the runtime.
  absl::StatusOr<std::vector<ChannelServer>> Servers();
  // Waits on this executor until Servers() differs from what it was when this function returned
  // `seen`: another set, or another state, failure or error of a server. With `seen` 0, as for the
  // first call, it does not wait. Changes that come while nobody waits are not lost, but several
  // may count as one. UNAVAILABLE: the runtime ends. FAILED_PRECONDITION: as Servers().
  //
  //   uint64_t seen = 0;
  //   for (;;) {
  //     absl::StatusOr<uint64_t> changed = co_await channel.ServersChanged(seen);
  //     if (!changed.ok()) co_return changed.status();
  //     seen = *changed;
  //     … channel.Servers() …
  //   }
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<uint64_t>> ServersChanged(uint64_t seen);

  // Counts of all executors, since the channel was made. From any thread.
  RetryStats retry_stats() const;

  const std::string& target() const;
  const ChannelOptions& options() const;

 private:
  friend internal::ClientChannel& internal::CoreOf(const Channel& channel);

  const std::unique_ptr<internal::ClientChannel> core_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CHANNEL_H_
