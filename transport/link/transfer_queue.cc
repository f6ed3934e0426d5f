#include "verbena/transport/link/transfer_queue.h"

#include <algorithm>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/poison.h"
#include "verbena/transport/link/bulk_limits.h"

namespace verbena::internal {

using Direction = Transfer::Direction;

TransferQueue::TransferQueue(TransferPool& pool, const Bounds& bounds)
    : pool_(pool), bounds_(bounds), slices_(bounds.send_queue_slots) {
  VERBENA_CHECK(bounds.send_queue_slots > 0 && bounds.slice_bytes > 0 &&
                bounds.slice_bytes <= bounds.bytes_ahead && bounds.max_reads <= kMaxReads)
      << "send_queue_slots " << bounds.send_queue_slots << ", slice_bytes " << bounds.slice_bytes
      << ", bytes_ahead " << bounds.bytes_ahead << ", max_reads " << bounds.max_reads;
  for (size_t i = 0; i < kMaxChain; ++i) {
    requests_[i].sg_list = &elements_[i];
    requests_[i].num_sge = 1;
  }
}

TransferQueue::~TransferQueue() {
  VERBENA_CHECK(!outstanding() && !waiting())
      << "slices " << slices_.count() << ", waiting " << waiting();
}

void TransferQueue::Add(Transfer& transfer) {
  waiting_[static_cast<size_t>(transfer.direction())].PushBack(transfer);
}

bool TransferQueue::Cancel(Transfer& transfer) {
  if (transfer.posted()) return true;
  transfer.IntrusiveNode<Transfer>::Unlink();
  transfer.next_piece_ = transfer.piece_count_;
  PostedSlice* const slice = slices_.FindLast(transfer);
  if (slice == nullptr) {
    pool_.GiveBack(transfer);
    return false;
  }
  slice->last = true;
  return true;
}

void TransferQueue::Abandon(Transfer& transfer) {
  transfer.listener_ = nullptr;
  if (!Cancel(transfer) || transfer.direction() != Direction::kRead) return;
  transfer.stopped_ = true;
  ++abandoned_reads_;
}

// The transfer that has waited longest in the direction whose turn it is, or in the other direction
// if none may go in this one.
Transfer* TransferQueue::Choose() {
  Transfer* write = waiting_[static_cast<size_t>(Direction::kWrite)].Front();
  Transfer* read = slices_.reads() < bounds_.max_reads
                       ? waiting_[static_cast<size_t>(Direction::kRead)].Front()
                       : nullptr;
  if (write == nullptr || read == nullptr) return write != nullptr ? write : read;
  turn_ = turn_ == Direction::kWrite ? Direction::kRead : Direction::kWrite;
  return turn_ == Direction::kRead ? read : write;
}

uint32_t TransferQueue::Prepare(uint32_t slots) {
  prepared_bytes_ = 0;
  if (!CanGo()) return 0;
  prepared_ = Choose();
  if (prepared_->is_atomic_) {
    prepared_count_ = slots > 0 ? PrepareAtomic() : 0;
    return prepared_count_;
  }
  const bool is_read = prepared_->direction() == Direction::kRead;
  uint32_t limit = std::min(slots, kMaxChain);
  if (is_read) limit = std::min(limit, bounds_.max_reads - slices_.reads());
  uint32_t count = 0;
  for (; count < limit && !prepared_->posted() && prepared_bytes_ < bounds_.slice_bytes; ++count) {
    const Transfer::Part part = prepared_->Next(bounds_.slice_bytes - prepared_bytes_);
    prepared_bytes_ += part.bytes;
    elements_[count].addr = reinterpret_cast<uintptr_t>(part.data);
    elements_[count].length = part.bytes;
    elements_[count].lkey = part.lkey;
    ibv_send_wr& request = requests_[count];
    request.next = &request + 1;
    request.opcode = is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    request.send_flags = is_read ? 0U : fence();
    request.wr.rdma.remote_addr = part.remote_address;
    request.wr.rdma.rkey = prepared_->remote_.rkey;
  }
  prepared_count_ = count;
  if (count == 0) return 0;
  requests_[count - 1].next = nullptr;
  requests_[count - 1].send_flags |= IBV_SEND_SIGNALED;
  return count;
}

uint32_t TransferQueue::PrepareAtomic() {
  const AtomicOperation& operation = prepared_->atomic_;
  const bool swaps = operation.kind == AtomicOperation::Kind::kCompareAndSwap;
  uint64_t* word = bounds_.words.first + next_word_;
  UnpoisonMemory(word, sizeof(*word));
  elements_[0].addr = reinterpret_cast<uintptr_t>(word);
  elements_[0].length = sizeof(*word);
  elements_[0].lkey = bounds_.words.lkey;
  ibv_send_wr& request = requests_[0];
  request.next = nullptr;
  request.opcode = swaps ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.atomic = {.remote_addr = prepared_->remote_.address,
                       .compare_add = operation.operand,
                       .swap = operation.swap,
                       .rkey = prepared_->remote_.rkey};
  prepared_->next_piece_ = 1;
  return 1;
}

void TransferQueue::Posted(uint32_t last_position) {
  VERBENA_CHECK(prepared_ != nullptr) << "nothing was prepared";
  Transfer& transfer = *prepared_;
  const bool is_read = transfer.direction() == Direction::kRead;
  uint64_t* word = nullptr;
  if (transfer.is_atomic_) {
    // Its last use has ended: READs, of which there may be no more, end in order.
    word = bounds_.words.first + next_word_;
    next_word_ = (next_word_ + 1) % kMaxReads;
  }
  slices_.Add({.end = last_position + 1,
               .reads = is_read ? prepared_count_ : 0,
               .bytes = prepared_bytes_,
               .transfer = &transfer,
               .last = transfer.posted(),
               .word = word});
  prepared_ = nullptr;
  if (!transfer.posted()) return;
  transfer.IntrusiveNode<Transfer>::Unlink();
  if (transfer.listener_ != nullptr) transfer.listener_->OnTransferPosted();
}

void TransferQueue::EndSlice() {
  const PostedSlice slice = slices_.Take();
  if (slice.word != nullptr) {
    TransferListener* listener = slice.transfer->listener_;
    if (listener != nullptr) listener->OnAtomicResult(*slice.word);
    PoisonMemory(slice.word, sizeof(*slice.word));
  }
  if (slice.last) End(*slice.transfer, absl::OkStatus());
}

void TransferQueue::End(Transfer& transfer, const absl::Status& status) {
  TransferListener* listener = transfer.listener_;
  if (transfer.stopped_) --abandoned_reads_;
  pool_.GiveBack(transfer);
  if (listener != nullptr) listener->OnTransferDone(status);
}

void TransferQueue::Fail(const absl::Status& status) {
  while (outstanding()) {
    const PostedSlice slice = slices_.Take();
    if (slice.word != nullptr) PoisonMemory(slice.word, sizeof(*slice.word));
    if (slice.last) End(*slice.transfer, status);
  }
  for (IntrusiveList<Transfer>& list : waiting_) {
    while (Transfer* transfer = list.PopFront()) End(*transfer, status);
  }
}

}  // namespace verbena::internal
