// LinkSupplies: what the links of one endpoint share in order to send: buffers, requests,
// transfers, and a bound on the payload bytes that one turn posts.
//
// Send buffers are shared out among source addresses, so it also knows these. Part of an Endpoint,
// on its executor's thread. TakeMemory() ends its use, once no link is left.

#ifndef VERBENA_TRANSPORT_LINK_LINK_SUPPLIES_H_
#define VERBENA_TRANSPORT_LINK_LINK_SUPPLIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "verbena/transport/device/device.h"
#include "verbena/transport/link/atomic_scratch.h"
#include "verbena/transport/link/bulk_budget.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/peer_sources.h"
#include "verbena/transport/link/send_buffers.h"
#include "verbena/transport/link/send_chain.h"
#include "verbena/transport/link/send_room.h"
#include "verbena/transport/link/transfer.h"

namespace verbena::internal {

// Memory that is registered with the device.
struct SendMemory {
  std::unique_ptr<SendBuffers> buffers;
  AtomicScratch atomic_scratch;
};

class LinkSupplies {
 public:
  LinkSupplies(SendMemory memory, const Device& device, const LinkLimits& limits);

  SendBuffers& buffers() { return *memory_.buffers; }
  SendChain& chain() { return chain_; }
  TransferPool& transfers() { return transfers_; }
  const AtomicScratch& atomic_scratch() const { return memory_.atomic_scratch; }
  BulkBudget& bulk() { return bulk_; }
  const BulkBudget& bulk() const { return bulk_; }
  SendRoom& room() { return *room_; }
  const SendRoom& room() const { return *room_; }
  uint32_t max_inline_bytes() const { return max_inline_bytes_; }

  // Call when a link to the source of that name is made.
  PeerSource& JoinSource(const std::string& name, bool bounded);
  // Call when it is gone.
  void LeaveSource(PeerSource& source);
  // Whether links to other sources than `source` are there, which it must not keep from sending.
  bool is_shared(const PeerSource& source) const { return source.bounded && sources_.size() > 1; }

  SendMemory TakeMemory() {
    room_.reset();
    return std::move(memory_);
  }

 private:
  const uint32_t max_inline_bytes_;
  SendMemory memory_;
  std::optional<SendRoom> room_;  // refers to the buffers
  SendChain chain_;
  TransferPool transfers_;
  BulkBudget bulk_;
  PeerSources sources_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_SUPPLIES_H_
