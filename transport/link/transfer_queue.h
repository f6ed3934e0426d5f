// TransferQueue: a link's transfers and atomic operations, both those that wait for the send queue
// and those in it.
//
// A transfer goes out in slices. A slice is a chain of WRs, of which the last is signalled. It goes
// out when the send queue has room and few bytes are outstanding, so that a SEND waits for no more
// than those. WRITEs and READs take turns, so that neither waits for all of the other. READs also
// wait for the number that both sides can have outstanding; atomics count as READs.
//
// Part of a LinkSender, which knows the queue pair and the send queue's positions. One thread.

#ifndef VERBENA_TRANSPORT_LINK_TRANSFER_QUEUE_H_
#define VERBENA_TRANSPORT_LINK_TRANSFER_QUEUE_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/link/atomic_scratch.h"
#include "verbena/transport/link/posted_slices.h"
#include "verbena/transport/link/transfer.h"

namespace verbena::internal {

class TransferQueue {
 public:
  // WRs of one chain.
  static constexpr uint32_t kMaxChain = 32;

  struct Bounds {
    uint32_t send_queue_slots;  // slices in the queue at most, since each has a WR
    uint32_t slice_bytes;       // of one chain, and of one WR
    uint32_t bytes_ahead;       // outstanding; at least slice_bytes
    uint32_t max_reads;         // outstanding, at most kMaxReads; 0: this link cannot READ
    AtomicWords words = {};
  };

  TransferQueue(TransferPool& pool, const Bounds& bounds);
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;
  // All transfers have ended: Fail() saw to that.
  ~TransferQueue();

  void set_max_reads(uint32_t max_reads) { bounds_.max_reads = max_reads; }
  uint32_t max_reads() const { return bounds_.max_reads; }
  // Whether there is memory for what atomic operations find.
  bool has_atomics() const { return bounds_.words.first != nullptr; }
  // For a device that completes a WR before the READs posted ahead of it (siw 6.1), although a
  // completion is taken to mean that everything before it has ended.
  void set_fences_reads(bool fences_reads) { fences_reads_ = fences_reads; }
  // IBV_SEND_FENCE if a WR that is posted now must not overtake outstanding READs, otherwise 0.
  // A WR must not on a device that needs fences, and behind abandoned READs, whose starter may be
  // about to tell the peer that it is done.
  unsigned fence() const {
    return (fences_reads_ && slices_.reads() != 0) || abandoned_reads_ != 0 ? IBV_SEND_FENCE : 0U;
  }

  void Add(Transfer& transfer);
  // Posts nothing more of it. Its listener hears, as ever, when the posted part has ended. False if
  // no part is posted: then the transfer is gone, and its listener hears nothing.
  bool Cancel(Transfer& transfer);
  // Posts nothing more of it. The posted part ends before the peer sees anything that is posted
  // from now on. Its listener hears no more.
  void Abandon(Transfer& transfer);
  // True when something waits to be posted.
  bool waiting() const { return !waiting_[0].empty() || !waiting_[1].empty(); }

  // True when something is in the send queue.
  bool outstanding() const { return !slices_.empty(); }
  // Slices that have ended so far; wraps around.
  uint32_t ended() const { return slices_.taken(); }

  // True when a transfer that waits needs nothing but free slots in the send queue.
  bool CanGo() const {
    return waiting() && RoomForSlice() &&
           (!waiting_[static_cast<size_t>(Transfer::Direction::kWrite)].empty() ||
            slices_.reads() < bounds_.max_reads);
  }
  // Bytes of transfers that are in the send queue: what a SEND that is posted now waits for.
  uint32_t bytes_outstanding() const { return slices_.bytes(); }

  // Prepares the next slice, of at most `slots` WRs, and returns how many; 0 when nothing waits
  // that may go. The link gives each its wr_id and posts them: chain() is linked.
  uint32_t Prepare(uint32_t slots);
  ibv_send_wr* chain() { return requests_.data(); }
  uint32_t prepared_bytes() const { return prepared_bytes_; }
  // The chain is in the send queue, its last WR at `last_position`.
  void Posted(uint32_t last_position);

  // Every WR before send queue position `completed` has ended well.
  void Completed(uint32_t completed) {
    while (slices_.HasEnded(completed)) EndSlice();
  }
  // The queue pair is gone: all transfers end with `status`.
  void Fail(const absl::Status& status);

 private:
  // A slice goes whole: small transfers in the queue do not cut it up.
  bool RoomForSlice() const { return slices_.bytes() + bounds_.slice_bytes <= bounds_.bytes_ahead; }
  Transfer* Choose();
  uint32_t PrepareAtomic();
  void EndSlice();
  void End(Transfer& transfer, const absl::Status& status);

  TransferPool& pool_;
  Bounds bounds_;
  std::array<IntrusiveList<Transfer>, 2> waiting_;  // by direction; the first may be half posted
  Transfer::Direction turn_ = Transfer::Direction::kWrite;
  PostedSlices slices_;
  uint32_t abandoned_reads_ = 0;  // transfers
  uint32_t next_word_ = 0;        // of bounds_.words, which are used in turn
  bool fences_reads_ = false;

  // The chain under preparation.
  Transfer* prepared_ = nullptr;
  uint32_t prepared_count_ = 0;
  uint32_t prepared_bytes_ = 0;
  std::array<ibv_send_wr, kMaxChain> requests_{};
  std::array<ibv_sge, kMaxChain> elements_{};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_TRANSFER_QUEUE_H_
