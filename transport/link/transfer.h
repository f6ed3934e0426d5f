// Transfer: one payload on its way between our memory and the peer's, by RDMA WRITE or READ; or one
// atomic operation on a word of the peer's.
//
// Made by Link::StartTransfer(), and gone once its listener has heard the end. It keeps the local
// memory until the device is done with it, even if its starter is gone. A starter that goes calls
// Abandon(), or Link::AbandonTransfer() if the rest need not be moved. Pooled by an endpoint
// (TransferPool), so that starting one allocates nothing in steady state. One thread.

#ifndef VERBENA_TRANSPORT_LINK_TRANSFER_H_
#define VERBENA_TRANSPORT_LINK_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "verbena/transport/base/intrusive_list.h"
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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_TRANSFER_H_
