// Transfers of links: payloads and atomic operations on their way between our memory and the
// peer's.
//
// Transfer is one of them. TransferQueue has those of a link, and PostedSlices the slices of them
// that are in the send queue. The endpoint owns idle transfers (TransferPool) and the words that
// atomic operations return (AtomicScratch), a link's LinkSender its queue; one thread. BulkLimits
// bounds what is posted.

#ifndef VERBENA_TRANSPORT_LINK_TRANSFERS_H_
#define VERBENA_TRANSPORT_LINK_TRANSFERS_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/memory/arena.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// Memory of the peer, as it told us.
struct RemoteRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t rkey = 0;
};

// An atomic operation on 8 bytes of the peer's memory, at a multiple of 8.
struct AtomicOperation {
  enum class Kind : uint8_t { kCompareAndSwap, kFetchAdd };
  Kind kind = Kind::kFetchAdd;
  uint64_t operand = 0;  // what is added, or compared
  uint64_t swap = 0;     // what is stored if the comparison holds
};

class TransferListener {
 public:
  virtual ~TransferListener() = default;

  // Every WR of the transfer is in the send queue: frames that are appended to the link from now on
  // arrive behind the bytes of a WRITE. Not called if the link is lost before.
  virtual void OnTransferPosted() {}
  // An atomic operation found `before` in the peer's memory. OnTransferDone(OK) follows.
  virtual void OnAtomicResult(uint64_t before) { static_cast<void>(before); }
  // The transfer has ended: OK, or UNAVAILABLE with the link. Either way no device touches the
  // local memory any more. The transfer is gone.
  virtual void OnTransferDone(const absl::Status& status) = 0;
};

// Transfer: one payload on its way between our memory and the peer's, by RDMA WRITE or READ; or one
// atomic operation on a word of the peer's.
//
// Made by Link::StartTransfer(), and gone once its listener has heard the end. It keeps the local
// memory until the device is done with it, even if its starter is gone. A starter that goes calls
// Abandon(), or Link::AbandonTransfer() if the rest need not be moved. Pooled by an endpoint
// (TransferPool), so that starting one allocates nothing in steady state. One thread.
class Transfer final : public IntrusiveNode<Transfer> {
 public:
  // An atomic operation is a READ as far as queues and limits go.
  enum class Direction : uint8_t { kWrite, kRead };

  // The listener hears no more of the transfer, which goes on.
  void Abandon() { listener_ = nullptr; }

  Direction direction() const { return direction_; }
  // Whether every WR of it is in the send queue.
  bool posted() const { return next_piece_ == piece_count_; }

 private:
  friend class TransferQueue;
  friend class TransferPool;

  struct Piece {
    BufferView view;
    BufferPin pin;
  };

  // The next part that one WR moves, at most `max_bytes`. Not for a posted() transfer, nor for an
  // atomic operation.
  struct Part {
    const char* data;
    uint32_t bytes;
    uint32_t lkey;
    uint64_t remote_address;
  };
  Part Next(uint32_t max_bytes);

  Direction direction_ = Direction::kWrite;
  bool is_atomic_ = false;
  bool stopped_ = false;  // while the device was at it
  RemoteRange remote_;
  AtomicOperation atomic_;
  std::vector<Piece> pieces_;  // none is empty
  size_t piece_count_ = 0;     // of pieces_; one of an atomic operation, which has none
  size_t next_piece_ = 0;
  size_t next_offset_ = 0;  // within it
  uint64_t next_remote_ = 0;
  TransferListener* listener_ = nullptr;
};

class TransferPool {
 public:
  TransferPool() = default;
  TransferPool(const TransferPool&) = delete;
  TransferPool& operator=(const TransferPool&) = delete;
  ~TransferPool();

  // `local` is registered memory, `remote.bytes` long in all, and not empty.
  Transfer& Take(Transfer::Direction direction, absl::Span<const BufferView> local,
                 const RemoteRange& remote, TransferListener* listener);
  Transfer& TakeAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                       TransferListener* listener);
  void GiveBack(Transfer& transfer);

  size_t in_use() const { return all_.size() - free_.size(); }

 private:
  Transfer& TakeAny(Transfer::Direction direction, const RemoteRange& remote,
                    TransferListener* listener);

  std::vector<std::unique_ptr<Transfer>> all_;
  std::vector<Transfer*> free_;  // poisoned
};

// A chain of WRs that is in the send queue.
struct PostedSlice {
  uint32_t end = 0;    // the position behind its last WR
  uint32_t reads = 0;  // of its WRs; an atomic operation is one
  uint32_t bytes = 0;
  Transfer* transfer = nullptr;
  bool last = false;         // of the transfer
  uint64_t* word = nullptr;  // of an atomic operation
};

// PostedSlices: the slices of transfers that are in a link's send queue, oldest first, and how many
// READs and bytes they have outstanding.
//
// A send queue completes in order, so slices end in the order in which they were posted. Positions
// in the send queue and the number of slices that have ended wrap around. Part of a link's
// TransferQueue; one thread.
//
//   slices.Add({.end = position + 1, .reads = 0, .bytes = bytes, .transfer = &transfer});
//   while (slices.HasEnded(completed)) Finish(slices.Take());
class PostedSlices {
 public:
  // At most `capacity` slices at a time.
  explicit PostedSlices(uint32_t capacity);

  bool empty() const { return head_ == tail_; }
  uint32_t count() const { return tail_ - head_; }
  // Slices that were taken so far.
  uint32_t taken() const { return head_; }
  uint32_t reads() const { return reads_; }
  uint32_t bytes() const { return bytes_; }

  void Add(const PostedSlice& slice) {
    VERBENA_CHECK(count() < slices_.size()) << "slices " << count();
    slices_[Index(tail_++)] = slice;
    reads_ += slice.reads;
    bytes_ += slice.bytes;
  }
  // The slice of `transfer` that was added last; nullptr if there is none. Looks at all slices.
  PostedSlice* FindLast(const Transfer& transfer);

  // Whether the oldest slice has ended, when every WR before send queue position `completed` has.
  // False if there is none.
  bool HasEnded(uint32_t completed) const {
    return !empty() && static_cast<int32_t>(completed - slices_[Index(head_)].end) >= 0;
  }
  // Takes the oldest. Precondition: not empty().
  PostedSlice Take() {
    const PostedSlice slice = slices_[Index(head_++)];
    reads_ -= slice.reads;
    bytes_ -= slice.bytes;
    return slice;
  }

 private:
  size_t Index(uint32_t number) const { return number & (slices_.size() - 1); }

  std::vector<PostedSlice> slices_;  // a ring; the size is a power of two
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
  uint32_t reads_ = 0;
  uint32_t bytes_ = 0;
};

// One link's words.
struct AtomicWords {
  uint64_t* first = nullptr;  // of kMaxReads; null if the device has no atomics
  uint32_t lkey = 0;
};

// AtomicScratch: registered words in which a device leaves what an atomic operation found.
//
// Each link of an endpoint has kMaxReads words: as many operations as can be outstanding, so none
// waits for a word. A link's TransferQueue uses its words in turn, and poisons those that no
// operation uses. Owned by the Endpoint, whose queue pairs are gone before it; one thread.
class AtomicScratch {
 public:
  // Empty if the device has no atomics.
  static absl::StatusOr<AtomicScratch> Create(Device& device, ibv_pd* pd, uint32_t max_links);
  AtomicScratch() = default;
  AtomicScratch(AtomicScratch&&) noexcept = default;
  AtomicScratch& operator=(AtomicScratch&&) noexcept = default;
  ~AtomicScratch();

  // `slot` is the link's, below max_links.
  AtomicWords Of(uint32_t slot) const;

 private:
  explicit AtomicScratch(Arena arena);

  Arena arena_;
};

// TransferQueue: a link's transfers and atomic operations, both those that wait for the send queue
// and those in it.
//
// A transfer goes out in slices. A slice is a chain of WRs, of which the last is signalled. It goes
// out when the send queue has room and few bytes are outstanding, so that a SEND waits for no more
// than those. WRITEs and READs take turns, so that neither waits for all of the other. READs also
// wait for the number that both sides can have outstanding; atomics count as READs.
//
// Part of a LinkSender, which knows the queue pair and the send queue's positions. One thread.
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
  // Two cases need it: the device completes WRs before earlier READs, or READs were abandoned, and
  // their starter may be about to tell the peer that it is done.
  unsigned fence() const {
    return (fences_reads_ && slices_.reads() != 0) || abandoned_reads_ != 0
               ? unsigned{IBV_SEND_FENCE}
               : 0U;
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

// CheckRegistered: whether a device can move memory that a user chose. Pure function.
//
// Whether `view` lies in memory that is registered in the protection domain `pd` of `device`, which
// a link uses. INVALID_ARGUMENT for memory that is not registered at all. FAILED_PRECONDITION for
// memory of another device, or of a device that has failed and was opened again since: its keys are
// unknown there, or name other memory.
absl::Status CheckRegistered(const BufferView& view, const ibv_pd* pd, const Device& device);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_TRANSFERS_H_
