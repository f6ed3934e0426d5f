#include "verbena/transport/link/transfers.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {
namespace {

constexpr size_t kBytesPerLink = kMaxReads * sizeof(uint64_t);

}  // namespace

Transfer::Part Transfer::Next(uint32_t max_bytes) {
  VERBENA_CHECK(!posted() && !is_atomic_ && max_bytes > 0)
      << "piece " << next_piece_ << " of " << piece_count_ << ", atomic " << is_atomic_
      << ", max_bytes " << max_bytes;
  const BufferView& view = pieces_[next_piece_].view;
  const size_t bytes = std::min<size_t>(view.size() - next_offset_, max_bytes);
  const Part part{view.data() + next_offset_, static_cast<uint32_t>(bytes), view.lkey(),
                  remote_.address + next_remote_};
  next_remote_ += bytes;
  next_offset_ += bytes;
  if (next_offset_ == view.size()) {
    ++next_piece_;
    next_offset_ = 0;
  }
  return part;
}

TransferPool::~TransferPool() {
  VERBENA_CHECK(in_use() == 0) << "transfers under way " << in_use();
  for (Transfer* transfer : free_) UnpoisonMemory(transfer, sizeof(*transfer));
}

Transfer& TransferPool::TakeAny(Transfer::Direction direction, const RemoteRange& remote,
                                TransferListener* listener) {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Transfer>());
    free_.push_back(all_.back().get());
    PoisonMemory(free_.back(), sizeof(Transfer));
  }
  Transfer& transfer = *free_.back();
  free_.pop_back();
  UnpoisonMemory(&transfer, sizeof(transfer));
  transfer.direction_ = direction;
  transfer.remote_ = remote;
  transfer.listener_ = listener;
  transfer.is_atomic_ = transfer.stopped_ = false;
  transfer.next_piece_ = 0;
  transfer.next_offset_ = 0;
  transfer.next_remote_ = 0;
  return transfer;
}

Transfer& TransferPool::Take(Transfer::Direction direction, absl::Span<const BufferView> local,
                             const RemoteRange& remote, TransferListener* listener) {
  Transfer& transfer = TakeAny(direction, remote, listener);
  uint64_t bytes = 0;
  for (const BufferView& view : local) {
    if (view.empty()) continue;
    VERBENA_CHECK(view.registered())
        << "a transfer of memory that is not registered, bytes " << view.size();
    bytes += view.size();
    transfer.pieces_.push_back({view, BufferPin(view)});
  }
  VERBENA_CHECK(bytes == remote.bytes && bytes > 0)
      << "local bytes " << bytes << ", remote bytes " << remote.bytes;
  transfer.piece_count_ = transfer.pieces_.size();
  return transfer;
}

Transfer& TransferPool::TakeAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                                   TransferListener* listener) {
  VERBENA_CHECK(remote.bytes == sizeof(uint64_t)) << "remote bytes " << remote.bytes;
  Transfer& transfer = TakeAny(Transfer::Direction::kRead, remote, listener);
  transfer.is_atomic_ = true;
  transfer.atomic_ = operation;
  transfer.piece_count_ = 1;
  return transfer;
}

void TransferPool::GiveBack(Transfer& transfer) {
  transfer.pieces_.clear();
  transfer.listener_ = nullptr;
  free_.push_back(&transfer);
  PoisonMemory(&transfer, sizeof(transfer));
}

PostedSlices::PostedSlices(uint32_t capacity) : slices_(std::bit_ceil(capacity)) {}

PostedSlice* PostedSlices::FindLast(const Transfer& transfer) {
  for (uint32_t number = tail_; number != head_; --number) {
    PostedSlice& slice = slices_[Index(number - 1)];
    if (slice.transfer == &transfer) return &slice;
  }
  return nullptr;
}

absl::StatusOr<AtomicScratch> AtomicScratch::Create(Device& device, ibv_pd* pd,
                                                    uint32_t max_links) {
  if (!device.capabilities().atomics) return AtomicScratch();
  VERBENA_ASSIGN_OR_RETURN(
      Arena arena, Arena::Create(device, pd, max_links * kBytesPerLink, IBV_ACCESS_LOCAL_WRITE));
  return AtomicScratch(std::move(arena));
}

AtomicScratch::AtomicScratch(Arena arena) : arena_(std::move(arena)) {
  PoisonMemory(arena_.data(), arena_.size());
}

AtomicScratch::~AtomicScratch() {
  if (arena_.data() != nullptr) UnpoisonMemory(arena_.data(), arena_.size());
}

AtomicWords AtomicScratch::Of(uint32_t slot) const {
  if (arena_.data() == nullptr) return {};
  return {reinterpret_cast<uint64_t*>(arena_.data() + slot * kBytesPerLink), arena_.lkey()};
}

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

absl::Status CheckRegistered(const BufferView& view, const ibv_pd* pd, const Device& device) {
  constexpr const char* kAdvice =
      "AllocateBuffer() of the Channel or the ServerContext gives memory that is registered with "
      "the device of its link";
  if (!view.registered()) {
    return absl::InvalidArgumentError(
        fmt::format("the memory is not registered with {}; {}", device.name(), kAdvice));
  }
  if (view.region().pd() == pd) return absl::OkStatus();
  const std::string& other = view.region().device_name();
  return absl::FailedPreconditionError(fmt::format(
      "the memory is registered with {}{}, and the link uses {}; {}", other,
      other == device.name() ? " by another runtime, or as it was before it failed and was reopened"
                             : "",
      device.name(), kAdvice));
}

}  // namespace verbena::internal
