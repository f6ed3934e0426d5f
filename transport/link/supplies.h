// Supplies that the links of one endpoint share: LinkSupplies, with SendRoom for links that wait
// for a send buffer.
//
// Part of an Endpoint, on its executor's thread. Their sizes are fixed when the endpoint is made.

#ifndef VERBENA_TRANSPORT_LINK_SUPPLIES_H_
#define VERBENA_TRANSPORT_LINK_SUPPLIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "verbena/transport/base/list.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/send_queue.h"
#include "verbena/transport/link/transfers.h"

namespace verbena::internal {

// SendRoom: the links of one endpoint that hold no send buffer, and wait for one.
//
// Some wait until any buffer is free; others until their source, which is full, may hold one more
// (send_queue.h). A source may hold one more when more buffers are free than it holds, whoever
// gave them back. So full sources are listed by how many they hold, and a buffer that is given back
// costs no look at those that hold too many. One thread.
class SendRoom {
 public:
  // `buffers` must outlive it.
  explicit SendRoom(const SendBuffers& buffers)
      : buffers_(buffers), full_(buffers.count() + 1), lowest_(full_.size()) {}

  // Whether links wait until any buffer is free.
  bool is_awaited() const { return !waiters_.empty(); }
  // A link to `source`, which holds no buffer, waits until Note() finds that it may have one.
  void Await(RoomWaiter& waiter, PeerSource& source);
  // After a link to `source` has given buffers back, or when one may hold more.
  void Note(PeerSource& source) {
    const bool is_full = source.linked();
    if (is_full) [[unlikely]]
      List(source);
    const bool may_go = lowest_ < buffers_.free_count();
    if (is_awaited() || may_go) [[unlikely]]
      Wake();
  }

 private:
  void List(PeerSource& source);
  void Wake();
  // The queue of the next that may have a buffer; nullptr if there is none.
  WaiterQueue<RoomWaiter>* Next();

  const SendBuffers& buffers_;
  WaiterQueue<RoomWaiter> waiters_;
  // Full sources by the buffers that they hold, or fewer: they are listed anew when their turn
  // comes.
  std::vector<IntrusiveList<PeerSource>> full_;
  size_t lowest_;  // no list before this one has a member
  bool waking_ = false;
};

// Memory that is registered with the device.
struct SendMemory {
  std::unique_ptr<SendBuffers> buffers;
  AtomicScratch atomic_scratch;
};

// LinkSupplies: what the links of one endpoint share in order to send: buffers, requests,
// transfers, and a bound on the payload bytes that one turn posts.
//
// Send buffers are shared out among source addresses, so it also knows these. Payloads leave in
// slices. If the processor copies them as they are posted, all links together post few bytes in one
// turn, so that calls do not wait for these copies. A link that is told to wait tries again in the
// next turn, ahead of the links that had a slice in this one.
//
// Part of an Endpoint, on its executor's thread. TakeMemory() ends its use, once no link is left.
class LinkSupplies {
 public:
  LinkSupplies(SendMemory memory, const Device& device, const LinkLimits& limits);

  SendBuffers& buffers() { return *memory_.buffers; }
  SendChain& chain() { return chain_; }
  TransferPool& transfers() { return transfers_; }
  const AtomicScratch& atomic_scratch() const { return memory_.atomic_scratch; }
  SendRoom& room() { return *room_; }
  const SendRoom& room() const { return *room_; }
  // What queue pairs are asked for, and the longest SEND that travels inline.
  uint32_t max_inline_bytes() const { return max_inline_bytes_; }

  // Whether a slice of a payload may be posted in that turn, by the executor's count of turns.
  bool MayPostBulk(uint64_t turn) const {
    return turn != bulk_turn_ || bulk_bytes_ < bulk_bytes_per_turn_;
  }
  void NoteBulk(uint64_t turn, uint32_t bytes) {
    bulk_bytes_ = turn == bulk_turn_ ? bulk_bytes_ + bytes : bytes;
    bulk_turn_ = turn;
  }

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
  const uint32_t bulk_bytes_per_turn_;  // reached or passed, it ends a turn's slices
  SendMemory memory_;
  std::optional<SendRoom> room_;  // refers to the buffers
  SendChain chain_;
  TransferPool transfers_;
  uint64_t bulk_turn_ = 0;   // the last in which a slice was posted
  uint64_t bulk_bytes_ = 0;  // posted in that turn
  PeerSources sources_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SUPPLIES_H_
