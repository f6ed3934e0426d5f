#include "verbena/transport/link/one_sided_queue.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace verbena {

using Direction = Transfer::Direction;

OneSidedQueue::OneSidedQueue(TransferPool& pool, const Bounds& bounds)
    : pool_(pool), bounds_(bounds), chains_(std::bit_ceil(bounds.send_queue_slots)) {
  for (size_t i = 0; i < kMaxChain; ++i) {
    requests_[i].sg_list = &elements_[i];
    requests_[i].num_sge = 1;
  }
}

OneSidedQueue::~OneSidedQueue() { assert(head_ == tail_ && !waiting()); }

void OneSidedQueue::Add(Transfer& transfer) {
  waiting_[static_cast<size_t>(transfer.direction())].PushBack(transfer);
}

void OneSidedQueue::Stop(Transfer& transfer) {
  transfer.listener_ = nullptr;
  if (transfer.posted()) return;
  transfer.IntrusiveNode<Transfer>::Unlink();
  transfer.next_piece_ = transfer.pieces_.size();
  for (uint32_t number = tail_; number != head_;) {
    Chain& chain = chains_[Index(--number)];
    if (chain.transfer != &transfer) continue;
    chain.last = true;
    return;
  }
  pool_.GiveBack(transfer);
}

// The transfer that has waited longest in the direction whose turn it is, or in the other when
// there is none that may go.
Transfer* OneSidedQueue::Choose() {
  Transfer* write = waiting_[static_cast<size_t>(Direction::kWrite)].Front();
  Transfer* read = reads_out_ < bounds_.max_reads
                       ? waiting_[static_cast<size_t>(Direction::kRead)].Front()
                       : nullptr;
  if (write == nullptr || read == nullptr) return write != nullptr ? write : read;
  turn_ = turn_ == Direction::kWrite ? Direction::kRead : Direction::kWrite;
  return turn_ == Direction::kRead ? read : write;
}

uint32_t OneSidedQueue::Prepare(uint32_t slots) {
  prepared_ = Choose();
  if (prepared_ == nullptr) return 0;
  const bool is_read = prepared_->direction() == Direction::kRead;
  uint32_t limit = std::min(slots, kMaxChain);
  if (is_read) limit = std::min(limit, bounds_.max_reads - reads_out_);
  uint32_t count = 0;
  for (; count < limit && !prepared_->posted(); ++count) {
    const Transfer::Part part = prepared_->Next(bounds_.max_wr_bytes);
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

void OneSidedQueue::Posted(uint32_t last_position) {
  Transfer& transfer = *prepared_;
  const bool is_read = transfer.direction() == Direction::kRead;
  const uint32_t reads = is_read ? prepared_count_ : 0;
  reads_out_ += reads;
  assert(tail_ - head_ < chains_.size());
  chains_[Index(tail_++)] = {last_position + 1, reads, &transfer, transfer.posted()};
  prepared_ = nullptr;
  if (!transfer.posted()) return;
  transfer.IntrusiveNode<Transfer>::Unlink();
  if (transfer.listener_ != nullptr) transfer.listener_->OnTransferPosted();
}

void OneSidedQueue::EndChain() {
  const Chain chain = chains_[Index(head_++)];
  reads_out_ -= chain.reads;
  if (chain.last) End(*chain.transfer, absl::OkStatus());
}

void OneSidedQueue::End(Transfer& transfer, const absl::Status& status) {
  TransferListener* listener = transfer.listener_;
  pool_.GiveBack(transfer);
  if (listener != nullptr) listener->OnTransferDone(status);
}

void OneSidedQueue::Fail(const absl::Status& status) {
  while (head_ != tail_) {
    const Chain chain = chains_[Index(head_++)];
    if (chain.last) End(*chain.transfer, status);
  }
  reads_out_ = 0;
  for (IntrusiveList<Transfer>& list : waiting_) {
    while (Transfer* transfer = list.PopFront()) End(*transfer, status);
  }
}

}  // namespace verbena
