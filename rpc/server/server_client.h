// ServerClient: one client's share of one executor of a server: calls that run, memory for the
// payloads of their requests and for their responses, and memory for messages of streams.
//
// A client is a runtime, known by the id in its Hello and by the address that it connects from. A
// peer that claims another client's id elsewhere takes nothing of that client's share. Shared by
// its links to that executor. Its bounds, and those of its ServerSource, keep one client, however
// greedy or slow, from taking what all need. On its executor's thread.

#ifndef VERBENA_RPC_SERVER_SERVER_CLIENT_H_
#define VERBENA_RPC_SERVER_SERVER_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/server_source.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/quota.h"

namespace verbena::internal {

// A client's claim to a name, and the address that it comes from.
struct ClientIdentity {
  RuntimeId runtime;
  // Its source address. If that names no host, the runtime's id, too.
  std::string source;
};

class ServerClient final : public std::enable_shared_from_this<ServerClient> {
 public:
  ServerClient(std::shared_ptr<ServerSource> source, uint32_t max_calls, size_t max_bytes,
               size_t max_granted_bytes, size_t max_response_bytes,
               std::shared_ptr<StreamShare> streams = nullptr, ClientIdentity identity = {})
      : identity_(std::move(identity)),
        source_(std::move(source)),
        queue_(source_->queue()),
        max_calls_(max_calls),
        requests_(max_bytes, &source_->requests(),
                  {.whose = "requests of this client",
                   .remedy = "Send fewer at once, destroy the Buffers of messages sooner, or raise "
                             "ServerOptions::max_bytes_per_client"}),
        grants_(max_granted_bytes, &source_->grants()),
        responses_(max_response_bytes, &source_->responses(),
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
  // Bytes of its responses (response_memory.h).
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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVER_CLIENT_H_
