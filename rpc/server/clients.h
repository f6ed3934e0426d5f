// The clients of one executor of a server, and the share of each: ClientBounds; ServerSource, all
// clients of one address; ServerClient, one of them; AllocateResponse(), memory for responses to
// one.
//
// The links of a client share it, and the clients of an address their source. Each has bounds, so
// that no client, however greedy or slow, takes what all need. On the executor's thread.

#ifndef VERBENA_RPC_SERVER_CLIENTS_H_
#define VERBENA_RPC_SERVER_CLIENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/stream/memory.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Endpoint;

// What one client, or all clients of one source address, may have of one executor of a server.
struct ClientBounds {
  uint32_t calls = 0;    // that run
  size_t bytes = 0;      // of payloads of requests
  size_t granted = 0;    // a part of these: of landings that are granted ahead
  size_t responses = 0;  // bytes of buffers for responses
};

// The share of a budget that a client may have, and that a source may have of whose clients each
// may have `of_client`. An option of 0 stands for half of the budget for a client. For a source it
// stands for three quarters, or for all of it if the source names no host.
size_t ClientShare(size_t option, size_t budget);
size_t SourceShare(size_t option, size_t budget, size_t of_client, bool names_source);

// ServerSource: the share of one executor of a server that all clients of one source address have
// together.
//
// A client chooses the runtime id that it claims, and may claim a hundred; it cannot choose the
// address that it connects from. So a source has bounds of its own, above those of each client.
// Shared by the ServerClients of its address. On its executor's thread.
class ServerSource {
 public:
  // The refusals that may wait for room on all of its links together, beyond those that each link
  // may always have (Refusals::kOwnQueued).
  static constexpr size_t kMaxQueuedRefusals = size_t{1} << 16;

  explicit ServerSource(const ClientBounds& bounds, std::shared_ptr<StreamShare> streams = nullptr,
                        size_t max_queued_refusals = kMaxQueuedRefusals, bool bounds_queue = true)
      : queue_(bounds_queue),
        max_calls_(bounds.calls),
        refusals_(max_queued_refusals),
        requests_(bounds.bytes, nullptr,
                  {.whose = "requests from this client's address, and landings granted ahead,",
                   .remedy = "Send fewer at once, destroy the Buffers of messages sooner, or raise "
                             "ServerOptions::max_bytes_per_source"}),
        grants_(bounds.granted, &requests_),
        responses_(bounds.responses, nullptr,
                   {.whose = "responses to this client's address, and buffers that its handlers "
                             "keep,",
                    .remedy = "Take responses faster, or raise "
                              "ServerOptions::max_response_bytes_per_source"}),
        streams_(std::move(streams)) {}
  ServerSource(const ServerSource&) = delete;
  ServerSource& operator=(const ServerSource&) = delete;

  bool full() const { return calls_ >= max_calls_; }
  void AddCall() { ++calls_; }
  void RemoveCall() {
    VERBENA_DCHECK(calls_ > 0) << "no call of the source runs";
    --calls_;
  }

  // Refusals that wait for room.
  Quota& refusals() { return refusals_; }

  // Bytes of payloads of its requests and of its streams' messages, until their handlers have
  // ended, and longer if these keep them.
  Quota& requests() { return requests_; }
  // A part of these: landings that were granted ahead.
  Quota& grants() { return grants_; }
  // A landing was granted: BeginReclaim() may ask for it.
  void NoteGrant() { reclaimed_ = false; }
  // True if its clients are to be asked for their grants: not if they have none, or were asked
  // since the last was granted. So a call that finds memory short costs no walk over the links.
  bool BeginReclaim() { return grants_.used() > 0 && !std::exchange(reclaimed_, true); }

  // Bytes of responses (AllocateResponse()).
  Quota& responses() { return responses_; }
  // One buffer beyond that, for a reply whose call would otherwise wait for itself.
  Quota& extra_response() { return extra_response_; }

  // Its share of the calls that run, if calls wait for their turn.
  SourceQueue& queue() { return queue_; }

  // Heap memory for messages of its streams; null if it has none.
  const std::shared_ptr<StreamShare>& streams() const { return streams_; }

 private:
  SourceQueue queue_;
  const uint32_t max_calls_;
  uint32_t calls_ = 0;
  Quota refusals_;
  Quota requests_;
  Quota grants_;
  bool reclaimed_ = false;
  Quota responses_;
  Quota extra_response_{1};
  const std::shared_ptr<StreamShare> streams_;
};

// A client's claim to a name, and the address that it comes from.
struct ClientIdentity {
  RuntimeId runtime;
  // Its source address. If that names no host, the runtime's id, too.
  std::string source;
};

// ServerClient: one client's share of one executor of a server: calls that run, memory for the
// payloads of their requests and for their responses, and memory for messages of streams.
//
// A client is a runtime, known by the id in its Hello and by the address that it connects from. A
// peer that claims another client's id elsewhere takes nothing of that client's share. Shared by
// its links to that executor. Its bounds, and those of its ServerSource, keep one client, however
// greedy or slow, from taking what all need. On its executor's thread.
class ServerClient final : public std::enable_shared_from_this<ServerClient> {
 public:
  ServerClient(std::shared_ptr<ServerSource> source, const ClientBounds& bounds,
               std::shared_ptr<StreamShare> streams = nullptr, ClientIdentity identity = {})
      : identity_(std::move(identity)),
        source_(std::move(source)),
        queue_(source_->queue()),
        max_calls_(bounds.calls),
        requests_(bounds.bytes, &source_->requests(),
                  {.whose = "requests of this client",
                   .remedy = "Send fewer at once, destroy the Buffers of messages sooner, or raise "
                             "ServerOptions::max_bytes_per_client"}),
        grants_(bounds.granted, &source_->grants()),
        responses_(bounds.responses, &source_->responses(),
                   {.whose = "responses to this client, and buffers that its handlers keep,",
                    .remedy = "Take responses faster, or raise "
                              "ServerOptions::max_response_bytes_per_client"}),
        streams_(std::move(streams)) {}
  ServerClient(const ServerClient&) = delete;
  ServerClient& operator=(const ServerClient&) = delete;

  const ClientIdentity& identity() const { return identity_; }
  ServerSource& source() const { return *source_; }
  // True if the client, or its source, runs as many calls as it may.
  bool full() const { return takes_its_share() || source_->full(); }
  bool takes_its_share() const { return calls_ >= max_calls_; }
  void AddCall() {
    ++calls_;
    source_->AddCall();
  }
  void RemoveCall() {
    VERBENA_DCHECK(calls_ > 0) << "no call of " << identity_.source << " runs";
    --calls_;
    source_->RemoveCall();
  }

  // Bytes of payloads of its requests and of its streams' messages, until their handlers have
  // ended, and longer if these keep them.
  Quota& requests() { return requests_; }
  // Takes `bytes` for a landing that is granted ahead of a request, until the handler of the
  // request has ended, or the memory of a landing that a handler took, or none got, is free. Empty
  // if the client or its source would have more than it may.
  QuotaHold TryGrant(size_t bytes) {
    if (!grants_.TryTake(bytes)) return {};
    source_->NoteGrant();
    return QuotaHold::Taken(grants_, bytes);
  }
  // Bytes of its responses (AllocateResponse()).
  Quota& responses() { return responses_; }
  // Its part of the queue, and what Admission counts of it.
  ClientQueue& queue() { return queue_; }
  const ClientQueue& queue() const { return queue_; }
  // For messages of its streams, a part of its source's share; null if it has none.
  const std::shared_ptr<StreamShare>& streams() const { return streams_; }

 private:
  const ClientIdentity identity_;
  const std::shared_ptr<ServerSource> source_;
  ClientQueue queue_;
  const uint32_t max_calls_;
  uint32_t calls_ = 0;
  Quota requests_;
  Quota grants_;
  Quota responses_;
  const std::shared_ptr<StreamShare> streams_;
};

// AllocateResponse: send memory for the responses to one client.
//
// A client that reads slowly, or takes no response at all, keeps the memory of its responses. So
// each client, and each source address, has a quota for the buffers that
// ServerContext::AllocateBuffer() gives the handlers of its calls, and for its large replies. A
// buffer counts until its memory is free again, even if a handler keeps it beyond its call. On the
// client's executor's thread.
//
// A buffer of `bytes` from the send memory of `endpoint`. Fails as AllocateWithin(). `beside` is
// how many parts the payload of the same call has. If the client has no more buffers than that, a
// wait for its quota would be a wait for the call itself, so its buffer comes beyond the quota. One
// call of each source has such a buffer at a time. `client` and `endpoint` outlive the Task.
Task<absl::StatusOr<Buffer>> AllocateResponse(ServerClient& client, const Endpoint& endpoint,
                                              size_t bytes, MemoryWait wait, size_t beside = 0);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CLIENTS_H_
