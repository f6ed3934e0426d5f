// OneSidedQueue: a link's transfers, atomic operations among them: those that wait for the send
// queue, and those in it.
//
// A transfer goes out in chains of WRs, of which the last is signalled, as the send queue has room.
// WRITEs and READs take turns, so that neither waits for all of the other; READs and atomics, which
// count as such, also wait for the number that both sides can have outstanding. Completions come in
// the order of the WRs, so what is in the queue is a ring of chains.
//
// Owned by its Link, which knows the queue pair and the send queue's positions. One thread.

#ifndef VERBENA_TRANSPORT_LINK_ONE_SIDED_QUEUE_H_
#define VERBENA_TRANSPORT_LINK_ONE_SIDED_QUEUE_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/link/atomic_landings.h"
#include "verbena/transport/link/transfer.h"

namespace verbena {

class OneSidedQueue {
 public:
  // WRs of one chain.
  static constexpr uint32_t kMaxChain = 32;

  struct Bounds {
    uint32_t send_queue_slots;  // chains in the queue at most, since each has a WR
    uint32_t max_wr_bytes;
    uint32_t max_reads;  // outstanding, at most kMaxReads; 0: this link cannot READ
    AtomicWords words = {};
  };

  OneSidedQueue(TransferPool& pool, const Bounds& bounds);
  OneSidedQueue(const OneSidedQueue&) = delete;
  OneSidedQueue& operator=(const OneSidedQueue&) = delete;
  // All transfers have ended: Fail() saw to that.
  ~OneSidedQueue();

  void set_max_reads(uint32_t max_reads) { bounds_.max_reads = max_reads; }
  uint32_t max_reads() const { return bounds_.max_reads; }
  // Whether there is memory for what atomic operations find.
  bool has_atomics() const { return bounds_.words.first != nullptr; }
  // For a device that completes a WR before the READs posted ahead of it (siw 6.1), while a
  // completion is taken to mean that everything before it has ended.
  void set_fences_reads(bool fences_reads) { fences_reads_ = fences_reads; }
  // IBV_SEND_FENCE for what is posted now where it must not overtake READs that are outstanding:
  // with such a device, or behind READs that were stopped, whose starter may be about to tell the
  // peer that it is done. Else 0.
  unsigned fence() const {
    return (fences_reads_ && reads_out_ != 0) || stopped_reads_ != 0 ? IBV_SEND_FENCE : 0U;
  }

  void Add(Transfer& transfer);
  // Nothing more of it is posted; its listener hears, as ever, when what is has ended. False when
  // nothing is: then it is gone, unheard.
  bool Cut(Transfer& transfer);
  // Nothing more of it is posted; it ends with what is, before the peer sees what is posted from
  // now on. Its listener hears no more.
  void Stop(Transfer& transfer);
  // True when something waits to be posted.
  bool waiting() const { return !waiting_[0].empty() || !waiting_[1].empty(); }

  // True when something is in the send queue.
  bool outstanding() const { return head_ != tail_; }

  // Of those that wait one that needs nothing but room in the send queue.
  bool CanGo() const {
    return !waiting_[static_cast<size_t>(Transfer::Direction::kWrite)].empty() ||
           (waiting() && reads_out_ < bounds_.max_reads);
  }

  // Prepares the next chain of at most `slots` WRs, and returns how many; 0 when nothing waits that
  // may go. The link gives each its wr_id and posts them: chain() is linked.
  uint32_t Prepare(uint32_t slots);
  ibv_send_wr* chain() { return requests_.data(); }
  // The chain is in the send queue, its last WR at `last_position`.
  void Posted(uint32_t last_position);

  // Every WR before send queue position `completed` has ended well.
  void Completed(uint32_t completed) {
    while (head_ != tail_ && static_cast<int32_t>(completed - chains_[Index(head_)].end) >= 0) {
      EndChain();
    }
  }
  // The queue pair is gone: all transfers end with `status`.
  void Fail(const absl::Status& status);

 private:
  struct Chain {
    uint32_t end;    // the position behind its last WR
    uint32_t reads;  // of its WRs
    Transfer* transfer;
    bool last;       // of the transfer
    uint64_t* word;  // of an atomic operation
  };

  size_t Index(uint32_t number) const { return number & (chains_.size() - 1); }
  Transfer* Choose();
  uint32_t PrepareAtomic();
  void EndChain();
  void End(Transfer& transfer, const absl::Status& status);

  TransferPool& pool_;
  Bounds bounds_;
  std::array<IntrusiveList<Transfer>, 2> waiting_;  // by direction; the first may be half posted
  Transfer::Direction turn_ = Transfer::Direction::kWrite;
  uint32_t reads_out_ = 0;
  uint32_t stopped_reads_ = 0;  // transfers
  uint32_t next_word_ = 0;      // of bounds_.words, which are used in turn
  bool fences_reads_ = false;

  // The chain under preparation.
  Transfer* prepared_ = nullptr;
  uint32_t prepared_count_ = 0;
  std::array<ibv_send_wr, kMaxChain> requests_{};
  std::array<ibv_sge, kMaxChain> elements_{};

  std::vector<Chain> chains_;  // a ring; the size is a power of two
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_ONE_SIDED_QUEUE_H_
