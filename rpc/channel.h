// Channel: a client's way to a server: a target, resolved to links.
//
// Usable at once and from every executor of its runtime. Each executor connects on its first call;
// there, channels with the same target, server_executor and server_key share one connection. No
// lock is taken. A stub keeps a pointer to it, so it must outlive its stubs and their calls.
//
//   Channel channel(*runtime, "storage-7:4000");
//   Store::Stub store(channel);
//   absl::StatusOr<GetReply> reply = co_await store.Get(request, {.deadline = 5ms});

#ifndef VERBENA_RPC_CHANNEL_H_
#define VERBENA_RPC_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/deadline.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/loan.h"
#include "verbena/rpc/metadata.h"
#include "verbena/rpc/remote_memory.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

namespace internal {
class Connection;
class Connections;
class ExecutorGate;
}  // namespace internal

struct ChannelOptions {
  // The server's executor to call, by number, modulo how many the server has. -1: server_key
  // decides. If that is 0, the server chooses its executor with the fewest links.
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
};

class Channel {
 public:
  // `target` is host:port ("storage-7:4000", "[::1]:4000"), or as RuntimeOptions::use_bootstrap
  // takes it. Nothing is checked or connected here: a target that is no address fails the first
  // call with INVALID_ARGUMENT. `runtime` must outlive every use but the destructor. A check aborts
  // if `options` sets both server_executor and server_key, or a field is out of its range.
  Channel(Runtime& runtime, std::string target, ChannelOptions options = {});
  // On any thread, also while or after the runtime is destroyed. Closes the links that no other
  // channel uses.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Connects this executor now, instead of in the first call. UNAVAILABLE: nobody answers.
  // INVALID_ARGUMENT: the target is no address. RESOURCE_EXHAUSTED or PERMISSION_DENIED: the server
  // refuses. FAILED_PRECONDITION: this thread runs no executor of the runtime. Errors of this and
  // the next three functions have Outcome::kNotExecuted.
  Task<absl::Status> Connect();

  // Memory for payloads of calls on this channel, which it connects if need be: `bytes` of it,
  // page-aligned. While the budget (LinkLimits::memory.send_bytes) is used up, it waits at most
  // 10 s, and then fails with RESOURCE_EXHAUSTED. It waits at most seven eighths of the time until
  // the deadline of the Task that awaits it. The runtime must outlive the Buffer.
  Task<absl::StatusOr<Buffer>> AllocateBuffer(size_t bytes);

  // The device that payloads of calls on this channel move over from this executor, for memory of
  // Runtime::RegisterMemory(). Connects if need be.
  Task<absl::StatusOr<std::string>> DeviceName();

  // Lends memory of AllocateBuffer() or Runtime::RegisterMemory() to the server's executor that
  // this one is connected with; connects if need be (loan.h). Waits for a memory window until the
  // deadline of the Task that awaits it.
  Task<absl::StatusOr<Loan>> Lend(BufferView view, LeaseAccess access);
  // Memory that the server lends to this executor, by a handle of a reply (remote_memory.h).
  // INVALID_ARGUMENT for a handle that names nothing, FAILED_PRECONDITION when the link that it was
  // lent over is not this executor's any more.
  absl::StatusOr<RemoteMemory> Remote(const RemoteMemoryHandle& handle);

  const std::string& target() const { return target_; }
  const ChannelOptions& options() const { return options_; }

  // For generated calls: this executor's connection; nullptr on a thread that runs no executor of
  // the runtime. Users call Connect().
  internal::Connection* ConnectionHere();

 private:
  Runtime& runtime_;
  const std::string target_;
  const ChannelOptions options_;
  struct Use {
    internal::Connection* connection = nullptr;
    internal::Connections* connections = nullptr;
    std::shared_ptr<internal::ExecutorGate> gate;  // open as long as they live
  };

  // By executor, each entry used on that executor's thread only.
  std::vector<Use> uses_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CHANNEL_H_
