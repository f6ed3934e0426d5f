// LinkSendQueue: one link's SENDs, from the buffer that takes their frames to the completion that
// frees it, and the slots of all the link's WRs in the send queue.
//
// A SEND is pending from Add() to Post(), and takes frames until then. Bounded by the send queue:
// FreeSlots() tells what is left of it. The buffers belong to the endpoint, and are counted against
// the peer's source as long as this object holds them. Part of a LinkSender, which decides what is
// posted and when, on its executor's thread.
//
//   const uint32_t buffer = queue.TakeBuffer(SendUse::kFrames, bindings_due);
//   if (buffer != SendBuffers::kNone) queue.Add(buffer, SendUse::kFrames);
//   char* body = queue.Place(header, body_bytes, /*invalidated=*/0);
//   …
//   const int error = queue.Post(ready, {.header = header, .fence = 0, .signal = false}, stats);

#ifndef VERBENA_TRANSPORT_LINK_LINK_SEND_QUEUE_H_
#define VERBENA_TRANSPORT_LINK_LINK_SEND_QUEUE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "verbena/transport/link/control_frames.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link_key.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/pending_sends.h"
#include "verbena/transport/link/send_buffers.h"
#include "verbena/transport/link/send_chain.h"
#include "verbena/transport/link/send_slots.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/link/wr_chain.h"

namespace verbena::internal {

class LinkSendQueue {
 public:
  // Things that the links of an endpoint share, and its bounds. All outlive the link.
  struct Shared {
    SendBuffers& buffers;
    SendChain& chain;
    uint32_t max_inline_bytes;
    uint32_t depth;  // WRs of one link at once; the drain marker has a slot beside them
  };

  // Posts to `qp`, which is destroyed when nothing is posted any more. `source` outlives the link.
  LinkSendQueue(ibv_qp* qp, LinkKey key, const Shared& shared, PeerSource& source)
      : qp_(qp),
        buffers_(shared.buffers),
        chain_(shared.chain),
        source_(source),
        max_inline_bytes_(shared.max_inline_bytes),
        slots_(key, shared.depth + kDrainMarkers),
        pending_(slots_.count()) {}
  LinkSendQueue(const LinkSendQueue&) = delete;
  LinkSendQueue& operator=(const LinkSendQueue&) = delete;
  ~LinkSendQueue() { GiveBackPending(); }

  // The largest SEND that the peer takes; 0 until the link is open.
  void set_send_bytes(uint32_t bytes) { send_bytes_ = bytes; }
  uint32_t send_bytes() const { return send_bytes_; }
  PeerSource& source() const { return source_; }
  SendSlots& slots() { return slots_; }
  const SendSlots& slots() const { return slots_; }

  // --- pending SENDs

  bool empty() const { return pending_.empty(); }
  size_t pending() const { return pending_.size(); }
  const PendingSend& last() const { return pending_.back(); }
  // Whether enough frames are pending to leave while the turn goes on (pending_sends.h).
  bool is_group() const { return pending_.is_group(); }
  void set_group(uint32_t frames) { pending_.set_group(frames); }
  // Whether the last pending SEND takes another such frame.
  bool Fits(size_t body_bytes, uint32_t invalidated) const {
    if (pending_.empty()) return false;
    const PendingSend& send = pending_.back();
    // A SEND ends one key.
    return send.use == SendUse::kFrames && send.bytes + FrameBytes(body_bytes) <= send_bytes_ &&
           (invalidated == 0 || send.invalidated == 0);
  }
  // A buffer for another SEND; SendBuffers::kNone if there is no slot or buffer for it.
  // `bindings_due` slots are set aside.
  uint32_t TakeBuffer(SendUse use, uint32_t bindings_due);
  // Gives back a buffer that no SEND was added for.
  void GiveBack(uint32_t buffer) { buffers_.GiveBack(buffer); }
  void Add(uint32_t buffer, SendUse use) {
    ++held_;
    ++source_.held;
    pending_.Add({buffer, sizeof(SendHeader), 0, use, /*invalidated=*/0});
  }
  // Writes a frame without its body behind those of the last pending SEND, and returns where the
  // body goes. The caller has seen that it fits.
  [[gnu::always_inline]] char* Place(const FrameHeader& header, size_t body_bytes,
                                     uint32_t invalidated) {
    const size_t frame_bytes = FrameBytes(body_bytes);
    PendingSend& send = pending_.back();
    if (invalidated != 0) send.invalidated = invalidated;
    char* frame = buffers_.data(send.buffer) + send.bytes;
    FrameHeader& stored = *reinterpret_cast<FrameHeader*>(frame);
    stored = header;
    stored.body_bytes = static_cast<uint32_t>(body_bytes);
    // Padding goes out with the frame: it must not be what the buffer held before.
    if (body_bytes % kFrameAlignment != 0) {
      std::memset(frame + frame_bytes - kFrameAlignment, 0, kFrameAlignment);
    }
    send.bytes += static_cast<uint32_t>(frame_bytes);
    pending_.CountFrame();
    return frame + sizeof(FrameHeader);
  }
  // The link is lost: gives back the buffers of pending SENDs.
  void DropPending();

  // --- the send queue

  // Slots that are free when the drain marker, the pending SENDs and `reserved` have theirs.
  uint32_t FreeSlots(uint32_t reserved) const {
    const uint32_t taken =
        slots_.in_flight() + static_cast<uint32_t>(pending_.size()) + kDrainMarkers + reserved;
    return taken < slots_.count() ? slots_.count() - taken : 0;
  }
  // Send buffers, of pending SENDs and of posted ones.
  uint32_t held() const { return held_; }
  bool holds_posted() const { return held_ != pending_.size(); }

  struct PostTerms {
    SendHeader header;  // of each SEND, apart from its frame count and whether it spends reserve
    unsigned fence;     // IBV_SEND_FENCE or 0
    bool signal;        // the last one, even if nothing else wants its completion
    size_t kept = 0;    // of the pending SENDs, 0 or 1: it leaves later in this turn
  };
  // Posts the pending SENDs behind the WRs in `ready`, with one doorbell. Returns what the device
  // answered: 0, or an errno. Always inlined, which saves a call for each RPC.
  [[gnu::always_inline]] int Post(WrChain& ready, const PostTerms& terms, LinkStats& stats) {
    const size_t count = pending_.size() - terms.kept;
    for (size_t i = 0; i < count; ++i) {
      const PendingSend& send = pending_[i];
      char* const start = WriteHeader(pending_[i], terms.header);
      const bool is_inline = send.bytes <= max_inline_bytes_;
      const uint32_t position = slots_.posted() + static_cast<uint32_t>(i);
      slots_.Hold(position, is_inline ? SendBuffers::kNone : send.buffer);
      const bool last = i + 1 == count && terms.kept == 0;
      const bool signal = slots_.CountSend(!is_inline, last, terms.signal);
      chain_.Set(i, slots_.IdOf(position).Pack(), start, send.bytes,
                 terms.fence | (is_inline ? IBV_SEND_INLINE : 0) | (signal ? IBV_SEND_SIGNALED : 0),
                 send.invalidated);
      stats.bytes_sent += send.bytes;
    }
    const int error = chain_.Post(qp_, count, ready);
    stats.sends += count;
    ++stats.doorbells;
    // Counts a refused chain too: the device may have taken some of its WRs, and reads their
    // buffers until the queue pair has drained.
    slots_.Advance(static_cast<uint32_t>(count));
    uint32_t released = 0;
    for (size_t i = 0; i < count; ++i) {
      if (pending_[i].bytes > max_inline_bytes_) continue;
      buffers_.GiveBack(pending_[i].buffer);
      ++released;
    }
    CountReleased(released);
    pending_.Clear(terms.kept != 0);
    return error;
  }
  // Posts the WRs in `ready` alone.
  int PostReady(WrChain& ready) { return ready.Post(qp_); }
  // Gives the `count` WRs from `requests` on the wr_ids of the next slots. The caller then says by
  // slots() how they are signalled, and takes these slots, even if the device refuses the WRs.
  void Name(ibv_send_wr* requests, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      requests[i].wr_id = slots_.IdOf(slots_.posted() + i).Pack();
    }
  }

  // A completion: frees the slots up to `position`. False if no WR there is in flight. `released`
  // is set to the number of buffers that are free again.
  bool Complete(uint16_t position, uint32_t& released) {
    uint32_t count = 0;
    const bool is_posted = slots_.Complete(position, [this, &count](uint32_t buffer) {
      buffers_.GiveBack(buffer);
      ++count;
    });
    if (count != 0) CountReleased(count);
    released = count;
    return is_posted;
  }
  // Call once the queue pair is in ERR. Posts a WR whose flush proves that all before it have
  // ended.
  void PostDrainMarker();
  // The queue pair is gone: gives back the buffers of what was posted.
  void ReleaseAll();

 private:
  // The counters of the last full header.
  struct Told {
    uint32_t credits_returned = 0;
    uint16_t reserve_seen = 0;
  };

  // So many buffers that it held are free.
  void CountReleased(uint32_t count) {
    held_ -= count;
    source_.held -= count;
  }
  // Writes the header of a SEND that is posted now, and returns where its bytes begin. A SEND that
  // has a compact form becomes shorter.
  [[gnu::always_inline]] char* WriteHeader(PendingSend& send, const SendHeader& told) {
    char* const data = buffers_.data(send.buffer);
    if (send.frames == 1 && !counters_changed(told)) {
      char* const frame = data + sizeof(SendHeader);
      const FrameHeader& only = *reinterpret_cast<const FrameHeader*>(frame);
      if (HasCompactForm(only)) {
        const uint32_t body_bytes = only.body_bytes;
        char* const body = frame + sizeof(FrameHeader);
        const size_t header_bytes = WriteCompact(told, only, body);
        send.bytes = static_cast<uint32_t>(header_bytes) + body_bytes;
        return body - header_bytes;
      }
    }
    SendHeader header = told;
    header.frame_count = send.frames;
    if (send.use == SendUse::kCredits) header.flags |= kSendSpendsReserve;
    std::memcpy(data, &header, sizeof(header));
    told_ = {told.credits_returned, told.reserve_seen};
    return data;
  }
  // Whether the peer has yet to hear of a counter that a compact SEND has no room for.
  bool counters_changed(const SendHeader& header) const {
    return header.credits_returned != told_.credits_returned ||
           header.reserve_seen != told_.reserve_seen;
  }
  void GiveBackPending() {
    for (const PendingSend& send : pending_) buffers_.GiveBack(send.buffer);
  }

  ibv_qp* const qp_;
  SendBuffers& buffers_;
  SendChain& chain_;
  PeerSource& source_;
  const uint32_t max_inline_bytes_;
  uint32_t send_bytes_ = 0;
  Told told_;
  SendSlots slots_;
  PendingSends pending_;
  uint32_t held_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_SEND_QUEUE_H_
