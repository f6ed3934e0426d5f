// SendSlots: the positions of a link's send queue: which WRs are in it, which send buffer each one
// holds, and which must ask for a completion.
//
// A send queue completes in order (InfiniBand specification, volume 1, 10.8.5), so the completion
// of one position proves all earlier ones. Positions count WRs, modulo 2^32. At least each
// kSignalInterval-th WR is signalled, and so is the last WR of a chain while an unsignalled one
// holds a buffer: otherwise slots and buffers would never come back.
//
// Part of a LinkSendQueue, on its executor's thread.
//
//   slots.Hold(slots.posted(), buffer);  // the WR that is posted next reads this buffer
//   const bool signal = slots.CountSend(/*holds=*/true, /*last=*/true, /*wanted=*/false);
//   slots.Advance(1);
//   ...
//   slots.Complete(position, [&](uint32_t buffer) { buffers.GiveBack(buffer); });

#ifndef VERBENA_TRANSPORT_LINK_SEND_SLOTS_H_
#define VERBENA_TRANSPORT_LINK_SEND_SLOTS_H_

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link_key.h"
#include "verbena/transport/link/send_buffers.h"
#include "verbena/transport/link/wr_id.h"

namespace verbena::internal {

class SendSlots {
 public:
  // `count` WRs fit the send queue of the link `key`.
  SendSlots(LinkKey key, uint32_t count)
      : key_(key), count_(count), buffers_(std::bit_ceil(count), SendBuffers::kNone) {}

  const LinkKey& key() const { return key_; }
  uint32_t count() const { return count_; }
  // WRs that were posted, and those known to have ended.
  uint32_t posted() const { return posted_; }
  uint32_t completed() const { return completed_; }
  uint32_t in_flight() const { return posted_ - completed_; }

  WrId IdOf(uint32_t position) const {
    return {WrId::Kind::kSend, static_cast<uint16_t>(position & WrId::kPositionMask),
            key_.generation, key_.slot};
  }

  // The WR at `position` holds `buffer` until it has ended; SendBuffers::kNone if it was copied.
  void Hold(uint32_t position, uint32_t buffer) { At(position) = buffer; }

  // `count` more WRs were posted.
  void Advance(uint32_t count) { posted_ += count; }

  // Counts a SEND that is about to be posted. True if it must be signalled. `holds`: it holds a
  // send buffer. `last`: nothing follows it in its chain; then it is signalled if that is `wanted`,
  // too.
  [[gnu::always_inline]] bool CountSend(bool holds, bool last, bool wanted) {
    holds_unsignalled_ |= holds;
    const bool signal =
        ++since_signal_ >= kSignalInterval || (last && (holds_unsignalled_ || wanted));
    if (signal) MarkSignalled();
    return signal;
  }
  // For `count` WRs that hold no buffer and follow one another: whether their last one must be
  // signalled. Then CountUnsignalled() or MarkSignalled() says how they were posted.
  bool IsSignalDue(uint32_t count) const { return since_signal_ + count >= kSignalInterval; }
  void CountUnsignalled(uint32_t count) { since_signal_ += count; }
  void MarkSignalled() {
    since_signal_ = 0;
    holds_unsignalled_ = false;
  }

  // A completion: frees all slots up to `position`, given modulo WrId::kPositionMask + 1, and calls
  // `give_back` with each buffer that they held. False if no WR at that position is in flight.
  template <typename GiveBack>
  [[gnu::always_inline]] bool Complete(uint16_t position, GiveBack give_back) {
    const uint32_t ahead = (position - completed_) & WrId::kPositionMask;
    if (ahead >= in_flight()) return false;
    for (uint32_t i = 0; i <= ahead; ++i, ++completed_) {
      uint32_t& buffer = At(completed_);
      if (buffer == SendBuffers::kNone) continue;
      give_back(std::exchange(buffer, SendBuffers::kNone));
    }
    return true;
  }
  // Calls `give_back` with each buffer that is still held: the queue pair is gone.
  template <typename GiveBack>
  void ReleaseAll(GiveBack give_back) {
    for (uint32_t& buffer : buffers_) {
      if (buffer != SendBuffers::kNone) give_back(std::exchange(buffer, SendBuffers::kNone));
    }
  }

  // The latest position in flight whose WR holds a buffer. Precondition: there is one.
  uint32_t LastHolder() const {
    uint32_t position = posted_ - 1;
    while (position != completed_ &&
           buffers_[position & (buffers_.size() - 1)] == SendBuffers::kNone)
      --position;
    return position;
  }

 private:
  uint32_t& At(uint32_t position) { return buffers_[position & (buffers_.size() - 1)]; }

  const LinkKey key_;
  const uint32_t count_;
  std::vector<uint32_t> buffers_;  // by position modulo the size, a power of two
  uint32_t posted_ = 0;
  uint32_t completed_ = 0;
  uint32_t since_signal_ = 0;
  bool holds_unsignalled_ = false;  // a WR since the last signalled one holds a buffer
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SEND_SLOTS_H_
