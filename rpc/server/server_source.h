// ServerSource: the share of one executor of a server that all clients of one source address have
// together.
//
// A client chooses the runtime id that it claims, and may claim a hundred; it cannot choose the
// address that it connects from. So a source has bounds of its own, above those of each client.
// Shared by the ServerClients of its address. On its executor's thread.

#ifndef VERBENA_RPC_SERVER_SERVER_SOURCE_H_
#define VERBENA_RPC_SERVER_SERVER_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/stream/memory.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/quota.h"

namespace verbena::internal {

class ServerSource {
 public:
  // The refusals that may wait for room on all of its links together, beyond those that each link
  // may always have (ServerSession::kOwnQueuedRefusals).
  static constexpr size_t kMaxQueuedRefusals = size_t{1} << 16;

  ServerSource(uint32_t max_calls, size_t max_bytes, size_t max_granted_bytes,
               size_t max_response_bytes, std::shared_ptr<StreamShare> streams = nullptr,
               size_t max_queued_refusals = kMaxQueuedRefusals, bool bounds_queue = true)
      : queue_(bounds_queue),
        max_calls_(max_calls),
        refusals_(max_queued_refusals),
        requests_(max_bytes, nullptr,
                  {.whose = "requests from this client's address, and landings granted ahead,",
                   .remedy = "Send fewer at once, destroy the Buffers of messages sooner, or raise "
                             "ServerOptions::max_bytes_per_source"}),
        grants_(max_granted_bytes, &requests_),
        responses_(max_response_bytes, nullptr,
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

  // Bytes of responses (response_memory.h).
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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVER_SOURCE_H_
