// ServerShard: a server's part on one executor: its links, and the pools of calls of each method.
//
// Owned by the Server; used on its executor's thread.

#ifndef VERBENA_RPC_SERVER_SHARD_H_
#define VERBENA_RPC_SERVER_SHARD_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/admission.h"
#include "verbena/rpc/call/memory.h"
#include "verbena/rpc/call_context.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/call.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/server_client.h"
#include "verbena/rpc/server/server_source.h"
#include "verbena/rpc/server/session.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {

class DedupeTable;

// One budget of payload memory, in bytes, now.
struct ServerMemoryStats {
  size_t budget = 0;
  size_t in_use = 0;
  MemoryHolders holders;
  size_t waiting = 0;  // calls
  uint64_t waits = 0;  // of calls, so far

  ServerMemoryStats& operator+=(const ServerMemoryStats& other);
};

struct ServerShardStats {
  uint64_t calls = 0;     // started
  uint64_t failures = 0;  // answered with a failed Status, refusals included
  uint64_t refused = 0;   // not started: unknown method, overload, shutting down
  std::array<uint64_t, kRefusalReasons> refused_by{};  // the same, by RefusalReason
  size_t queued = 0;                                   // calls that wait for their turn, now
  uint64_t memory_refused = 0;    // waits for a share of a budget that ended without it
  uint64_t payloads_written = 0;  // to landings that were granted ahead
  size_t granted_bytes = 0;       // in such landings, now
  size_t idle_calls = 0;          // kept for calls to come, now
  ServerMemoryStats receive_memory;
  ServerMemoryStats send_memory;
};

// As ServerOptions says.
struct ServerLimits {
  uint32_t max_concurrent_calls = 0;
  uint32_t max_calls_per_client = 0;  // 0: no calls
  // 0: three quarters of max_concurrent_calls, or max_calls_per_client if more
  uint32_t max_calls_per_source = 0;
  size_t max_bytes_per_client = 0;  // 0: half of the budget
  size_t max_bytes_per_source = 0;  // 0: three quarters of it, or max_bytes_per_client if more
  // The same of the budget for responses.
  size_t max_response_bytes_per_client = 0;
  size_t max_response_bytes_per_source = 0;
  Duration memory_wait{};
  Duration response_grace{};
  size_t max_metadata_bytes = 0;
  std::vector<std::shared_ptr<ServerInterceptor>> interceptors;
  AdmissionOptions admission;
  // One for all executors, which it outlives; never null.
  DedupeTable* dedupe = nullptr;
};

// Handlers that run, by the method's full name.
using RunningHandlers = absl::btree_map<std::string, uint32_t>;

// The part of a request by which its call is admitted.
struct CallOffer {
  uint16_t method = 0;
  Streams streams = Streams::kNone;
  Priority priority = Priority::kNormal;
  // Bytes of its payload, and of a message that does not fit its frame: a peer's claim, within
  // LinkLimits::max_payload_bytes.
  uint64_t pinned_bytes = 0;
};

class ServerShard {
 public:
  // The most calls of one method that are kept, with their messages, for calls to come. A burst of
  // more leaves no more behind.
  static constexpr size_t kMaxIdleCalls = 1024;

  ServerShard(Shard& shard, const MethodTable& methods, const ServerLimits& limits);
  ~ServerShard();

  Executor& executor() const { return shard_.executor(); }
  const MethodTable& methods() const { return methods_; }

  // Answers an offer that arrived on `stream`, and serves the link.
  void Serve(std::unique_ptr<MessageStream> stream, LinkParameters offer);

  const ServerLimits& limits() const { return limits_; }
  // The holders of the receive budget and of the send budget. Calls count there what they hold.
  MemoryHolders& receive_holders() { return *receive_; }
  const std::shared_ptr<MemoryHolders>& shared_receive_holders() const { return receive_; }
  MemoryHolders& send_holders() { return send_; }

  // Null if the server's options set no bounds for it.
  Admission* admission() const { return admission_.get(); }

  // A call of the method with that number, from the pool; nullptr when it is refused, or when
  // admission() decides. `streams` is which sides send a stream, as the client says.
  ServerCall* Admit(uint16_t method, Streams streams, ServerClient& client) {
    const int index = methods_.IndexOf(method);
    if (index < 0 || draining_ || active_ >= max_at_once_ || client.full() ||
        methods_.entry(index).streams != streams) {
      return nullptr;
    }
    client.AddCall();
    ++stats_.calls;
    return TakeCall(index);
  }
  // The same if admission() decides. NoteStarted() follows when the call's turn has come.
  // nullptr, and `reason`, which is counted, if the call is refused.
  [[gnu::noinline]] ServerCall* AdmitGuarded(const CallOffer& offer, ServerClient& client,
                                             RefusalReason& reason);
  void NoteStarted() { ++stats_.calls; }
  // Why Admit() just refused, counted.
  [[gnu::cold, gnu::noinline]] RefusalReason Refusal(uint16_t method, Streams streams,
                                                     const ServerClient& client);
  // The same for a call with more metadata than ServerOptions::max_metadata_bytes.
  [[gnu::cold, gnu::noinline]] RefusalReason RefusalOfMetadata() {
    return CountRefusal(RefusalReason::kTooMuchMetadata);
  }
  // The same for one that is over LinkLimits::max_payload_bytes.
  [[gnu::cold, gnu::noinline]] RefusalReason RefusalOfSize() {
    return CountRefusal(RefusalReason::kRequestTooLarge);
  }
  RefusalReason CountRefusal(RefusalReason reason) {
    NoteRefused(reason);
    NoteFailure();
    return reason;
  }
  // For a call whose response counts as a failure by itself.
  void NoteRefused(RefusalReason reason) {
    ++stats_.refused;
    ++stats_.refused_by[static_cast<size_t>(reason)];
  }
  // The Status of a response that refuses a call for that reason, and the same as a body.
  const absl::Status& RefusalStatus(RefusalReason reason) const {
    return refusals_[static_cast<size_t>(reason)];
  }
  const std::string& RefusalBody(RefusalReason reason) const {
    return refusal_bodies_[static_cast<size_t>(reason)];
  }
  // The call has ended: pools it, or destroys it if the pool is full. Nothing uses it afterwards.
  void Recycle(ServerCall& call) {
    BoundedVector<ServerCall*>& pool = free_[call.method_index()];
    if (pool.size() >= kMaxIdleCalls) [[unlikely]] {
      delete &call;
    } else {
      pool.PushBack(&call);
      PoisonMemory(&call, sizeof(call));
    }
    VERBENA_CHECK(active_ > 0);
    if (--active_ == 0 && draining_) idle_.Set();
  }
  void NoteFailure() { ++stats_.failures; }
  // A handler threw `what`.
  void LogThrown(const char* method, const char* what);
  // How many waits for a share of a client or of its source ended without it.
  uint64_t& memory_refused() { return stats_.memory_refused; }
  void NotePayloadWritten() { ++stats_.payloads_written; }
  // Counted by its links (landings.h).
  size_t granted_bytes() const { return receive_->grants; }
  void OnSessionDown(ServerSession& session);
  // A session whose link is down has no calls left.
  void OnSessionIdle(ServerSession& session);

  // Tells the clients, and refuses new calls once these know. Waits until the running calls end or
  // `deadline` passes, then cancels them. Closes the links at most kCloseGrace later, even if
  // somebody still waits for something over them. May be called again, and then waits for the
  // handlers that were left.
  Task<void> Shutdown(TimePoint deadline);
  // Waits for handlers that outlasted Shutdown(); names them in the log from time to time.
  Task<void> AwaitHandlers();
  // Adds up the handlers that run, by method.
  void CountRunning(RunningHandlers& running);

  // One that is in service; nullptr: none is.
  const Endpoint* AnyEndpoint() const;

  ServerShardStats stats() const;
  // stats(), kept for threads that cannot wait for this one. Published here, read anywhere.
  void PublishStats() { published_.Set(stats()); }
  ServerShardStats published_stats() const { return published_.Get(); }
  uint32_t active() const { return active_; }
  // Asks every client on `endpoint` to return its grants, unless all were asked since the last
  // grant: not every call that finds memory short walks over the links.
  void ReclaimGrants(const Endpoint& endpoint);
  // Asks every client of `source` likewise.
  void ReclaimGrants(ServerSource& source);
  // A landing may have been granted.
  void NoteLandingOffered(size_t granted_before) {
    if (receive_->grants > granted_before) [[unlikely]]
      reclaimed_.clear();
  }

 private:
  [[gnu::cold, gnu::noinline]] ServerCall* AddCall(int method_index);
  // A call that is admitted.
  ServerCall* TakeCall(int method_index) {
    ++active_;
    if (free_[method_index].empty()) return AddCall(method_index);
    ServerCall* call = free_[method_index].PopBack();
    UnpoisonMemory(call, sizeof(*call));
    return call;
  }
  Task<void> Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer);
  // Makes a session under `number` in sessions_, and its link. If this fails, the caller takes the
  // session out of sessions_.
  Task<absl::Status> AcceptAs(uint64_t number, std::unique_ptr<MessageStream> stream,
                              LinkParameters offer);
  Task<absl::StatusOr<Link*>> Open(std::unique_ptr<MessageStream> stream, LinkParameters offer,
                                   ServerSession& session);
  // The bounds of the client that connects by `stream` and claims to be `id`.
  std::shared_ptr<ServerClient> ClientOf(const MessageStream& stream, const RuntimeId& id);
  // The bounds of the source `address`, which stands for all clients unless it `names_source`.
  std::shared_ptr<ServerSource> SourceOf(const std::string& address, bool names_source);
  // Entries without a link leave the tables when these have grown to twice their use.
  void ForgetExpired();
  // Shares of the receive budget and of the send budget, for a source that `names_source` and for
  // one that does not.
  size_t max_bytes_per_client() const;
  size_t max_bytes_per_source(bool names_source) const;
  size_t max_response_bytes_per_client() const;
  size_t max_response_bytes_per_source(bool names_source) const;
  // Calls that count in max_concurrent_calls.
  uint32_t bounded_calls() const;
  Task<absl::Status> WaitUntilIdle();
  Task<absl::Status> WaitUntilUnlinked();
  Task<void> CancelHandlers(TimePoint until);

  Shard& shard_;
  const MethodTable& methods_;
  const ServerLimits limits_;
  const std::array<absl::Status, kRefusalReasons> refusals_;
  const std::array<std::string, kRefusalReasons> refusal_bodies_;  // encoded
  // Landings may outlive this, and count in it until then.
  const std::shared_ptr<MemoryHolders> receive_ = std::make_shared<MemoryHolders>();
  MemoryHolders send_;
  // Endpoints whose clients were asked for all their grants. Compared, never used.
  absl::flat_hash_set<const Endpoint*> reclaimed_;
  // limits_.max_concurrent_calls, or 0 if admission_ decides.
  const uint32_t max_at_once_;
  uint32_t active_ = 0;
  bool leaving_ = false;   // clients were told so
  bool draining_ = false;  // and no call begins any more
  bool closed_ = false;    // Shutdown() has gathered the links that it closes
  uint64_t accepted_ = 0;  // links, so far
  ServerShardStats stats_;
  Published<ServerShardStats> published_;
  Event idle_;      // no calls, while draining
  Event unlinked_;  // no links, while leaving
  // By source address, and by address and claimed id. Owned by their links; entries without a link
  // may have expired.
  absl::flat_hash_map<std::string, std::weak_ptr<ServerSource>> sources_;
  absl::flat_hash_map<std::pair<std::string, RuntimeId>, std::weak_ptr<ServerClient>> clients_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<ServerSession>> sessions_;  // by number
  // Down and idle, but perhaps still on the stack: freed in the next Accept, or at the end.
  std::vector<std::unique_ptr<ServerSession>> finished_;
  // By method, owned, at most kMaxIdleCalls each; what they hold is poisoned. A call that runs
  // belongs to itself, until Recycle().
  std::vector<BoundedVector<ServerCall*>> free_;
  ThrottledLog thrown_{{.lines = 1, .interval = std::chrono::seconds(10)}};
  std::unique_ptr<Admission> admission_;
  TaskScope tasks_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SHARD_H_
