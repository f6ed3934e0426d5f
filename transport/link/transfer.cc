#include "verbena/transport/link/transfer.h"

#include <algorithm>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/poison.h"

namespace verbena::internal {

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

}  // namespace verbena::internal
