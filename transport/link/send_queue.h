// The SENDs of a link, from frames to completions: LinkSendQueue and its parts.
//
// PendingSends has the SENDs that still take frames, and SendSlots the positions of the send queue.
// SendBuffers is the memory that SENDs are written into; WrChain and SendChain are the work
// requests of one flush. The endpoint owns SendBuffers and SendChain, a link's LinkSender the rest;
// on the executor's thread. The send queue and the endpoint's buffers bound them.

#ifndef VERBENA_TRANSPORT_LINK_SEND_QUEUE_H_
#define VERBENA_TRANSPORT_LINK_SEND_QUEUE_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

// kCredits spends a reserve credit and has no frames. kControl has control frames alone, in a spare
// buffer: no other frame joins it, since the SEND must be small enough to travel inline.
enum class SendUse : uint8_t { kFrames, kControl, kCredits };

// A SEND that is being filled, or waits for the flush.
struct PendingSend {
  uint32_t buffer;
  uint32_t bytes;
  uint16_t frames;
  SendUse use;
  uint32_t invalidated;  // the key that it ends; 0: none
};

// PendingSends: the SENDs of this turn, of which the last may still take frames.
//
// Part of a LinkSendQueue, which gives the buffers back, on its executor's thread. Bounded by the
// send queue: whoever adds a SEND has seen that a slot is free for it.
class PendingSends {
 public:
  explicit PendingSends(size_t capacity) : sends_(capacity) {}

  bool empty() const { return sends_.empty(); }
  size_t size() const { return sends_.size(); }
  PendingSend& back() { return sends_.back(); }
  const PendingSend& back() const { return sends_.back(); }
  PendingSend& operator[](size_t index) { return sends_[index]; }
  const PendingSend* begin() const { return sends_.begin(); }
  const PendingSend* end() const { return sends_.end(); }

  void Add(const PendingSend& send) { sends_.PushBack(send); }
  // A frame was written behind those of the last SEND.
  void CountFrame() {
    ++sends_.back().frames;
    ++frames_;
  }
  // The SENDs were posted, except the last one if `kept`.
  void Clear(bool kept) {
    group_ = kMinEarlyFrames;
    frames_ = 0;
    if (!kept) {
      sends_.clear();
      return;
    }
    const PendingSend last = sends_.back();
    sends_.clear();
    sends_.PushBack(last);
    frames_ = last.frames;
  }

  // `frames` frames are a group that may leave while the turn goes on. kMinEarlyFrames, until
  // EarlyFrames() has been asked.
  void set_group(uint32_t frames) { group_ = frames; }
  bool is_group() const { return frames_ >= group_; }

 private:
  BoundedVector<PendingSend> sends_;
  uint32_t frames_ = 0;
  uint32_t group_ = kMinEarlyFrames;
};

// SendBuffers: the registered memory that SENDs are written into, shared by the links of one
// endpoint.
//
// Frames are serialized straight into a buffer; a SEND that the device takes inline gives it back
// at once, any other when its completion arrives. Reused last in, first out, so that the buffer
// taken is the one in the cache. Bounded: empty means back-pressure. Free buffers are poisoned. One
// thread.
//
// A peer that acknowledges nothing keeps the buffers of its link. So if there are several source
// addresses, the links to one take a buffer only if they hold fewer together than are free: one
// source leaves half to the others, two a quarter, and each finds some.
//
// Each link has a share of the buffers that its source may still take. A link that holds none takes
// any of them. A link that holds some takes another only if more of them are left than it holds,
// apart from a reserve: a first buffer for each possible link, at most a quarter of what the source
// may hold. So the share shrinks as buffers become scarce, and each link finds its first.
//
// A few spare buffers are beside those that are shared. A SEND of control frames or credits alone
// takes one if the link finds no other, and only if it travels inline: then the buffer is back as
// soon as the SEND is posted. So a peer that holds buffers delays no other peer's PONG, except the
// padded one of a new link (LinkProof), which is too long for that.
class SendBuffers {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // `max_links` links use them, at most.
  static absl::StatusOr<std::unique_ptr<SendBuffers>> Create(Device& device, ibv_pd* pd,
                                                             uint32_t count, uint32_t bytes,
                                                             uint32_t max_links);
  ~SendBuffers();

  // Takes a buffer for a link to `source` that holds `held` already. kNone if all are in use, or
  // the link or the source has its share. The caller counts what they hold.
  uint32_t Take(uint32_t held, const PeerSource& source) {
    if (free_.empty() || IsFull(source) || !HasShare(held, source)) return kNone;
    const uint32_t index = free_.PopBack();
    UnpoisonMemory(data(index), bytes_);
    return index;
  }
  // Takes a buffer for a SEND that is posted inline before this turn ends. kNone if all are in use.
  uint32_t TakeSpare() {
    if (spare_.empty()) return kNone;
    const uint32_t index = spare_.PopBack();
    UnpoisonMemory(data(index), bytes_);
    return index;
  }
  void GiveBack(uint32_t index) {
    PoisonMemory(data(index), bytes_);
    if (index < count_) [[likely]] {
      free_.PushBack(index);
    } else {
      spare_.PushBack(index);
    }
  }

  void ShareAmong(size_t sources) { is_shared_ = sources > 1; }
  // Whether the links to `source` together hold what they may.
  bool IsFull(const PeerSource& source) const {
    return IsBounded(source) && source.held >= free_.size();
  }

  char* data(uint32_t index) const { return arena_.data() + size_t{index} * stride_; }
  uint32_t lkey() const { return arena_.lkey(); }
  uint32_t bytes() const { return bytes_; }
  size_t free_count() const { return free_.size(); }
  uint32_t count() const { return count_; }

 private:
  static constexpr uint32_t kSpares = 4;

  SendBuffers(Arena arena, uint32_t count, uint32_t bytes, uint32_t max_links);

  bool IsBounded(const PeerSource& source) const { return is_shared_ && source.bounded; }
  // Whether a link that holds `held` may take one more. Precondition: the source is not full.
  bool HasShare(uint32_t held, const PeerSource& source) const {
    if (held == 0) return true;
    // Each buffer that the source takes is also one fewer that is free.
    const size_t free = free_.size();
    const size_t room = IsBounded(source) ? (free - source.held + 1) / 2 : free;
    const size_t limit = IsBounded(source) ? source.held + room : count_;
    return room > std::min<size_t>(max_links_, limit / 4) + held;
  }

  Arena arena_;
  const uint32_t count_;
  const uint32_t bytes_;
  const uint32_t stride_;
  const uint32_t max_links_;
  bool is_shared_ = false;
  BoundedVector<uint32_t> free_;
  BoundedVector<uint32_t> spare_;
};

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

  // `count` more WRs were posted; -1u takes the last one back.
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

// WrChain: the work requests that one flush has made ready, of whatever kind: they leave with one
// doorbell, in this order.
//
// Refers to the requests, which their makers do not touch until Post(). Lives on the stack of a
// flush.
class WrChain {
 public:
  // The chain signals each WR of more than `max_unsignalled_bytes` (DeviceCapabilities), whatever
  // its maker has chosen. The CQ has room for a completion of each WR.
  explicit WrChain(uint32_t max_unsignalled_bytes)
      : max_unsignalled_bytes_(max_unsignalled_bytes) {}

  // Appends the linked WRs from `first` to `last`.
  void Add(ibv_send_wr* first, ibv_send_wr* last) {
    (last_ == nullptr ? first_ : last_->next) = first;
    last_ = last;
  }
  bool empty() const { return first_ == nullptr; }

  // Posts the chain, which must not be empty(), and empties it. Returns the errno of ibv_post_send,
  // or 0. After an error nobody knows how many WRs were taken, since some devices (rxe 6.1) leave
  // `bad_wr` as it was.
  int Post(ibv_qp* qp) {
    last_ = nullptr;
    if (max_unsignalled_bytes_ != kAnyBytes) [[unlikely]]
      SignalLongOnes();
    ibv_send_wr* ignored = nullptr;
    return ibv_post_send(qp, std::exchange(first_, nullptr), &ignored);
  }

 private:
  static constexpr uint32_t kAnyBytes = std::numeric_limits<uint32_t>::max();

  void SignalLongOnes();

  const uint32_t max_unsignalled_bytes_;
  ibv_send_wr* first_ = nullptr;
  ibv_send_wr* last_ = nullptr;
};

// SendChain: the WRs of one flush's SENDs.
//
// The WRs are linked to each other and to their elements once, so that a flush fills in only what
// differs from SEND to SEND. Owned by an Endpoint and shared by its links, of which only one
// flushes at a time.
class SendChain {
 public:
  // `depth` SENDs at most, of one element each, out of memory with `lkey`.
  SendChain(uint32_t depth, uint32_t lkey) : requests_(depth), elements_(depth) {
    for (uint32_t i = 0; i < depth; ++i) {
      elements_[i].lkey = lkey;
      requests_[i].next = i + 1 < depth ? &requests_[i + 1] : nullptr;
      requests_[i].sg_list = &elements_[i];
      requests_[i].num_sge = 1;
    }
  }

  // `invalidated` is a key of the peer's that the SEND ends; 0 for none.
  void Set(size_t i, uint64_t wr_id, const char* data, uint32_t bytes, unsigned send_flags,
           uint32_t invalidated) {
    elements_[i].addr = reinterpret_cast<uintptr_t>(data);
    elements_[i].length = bytes;
    requests_[i].wr_id = wr_id;
    requests_[i].send_flags = send_flags;
    requests_[i].opcode = invalidated != 0 ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND;
    requests_[i].invalidate_rkey = invalidated;
  }

  // Posts the first `count`, behind the WRs in `ready`. Returns what WrChain::Post() returns.
  int Post(ibv_qp* qp, size_t count, WrChain& ready) {
    ibv_send_wr& last = requests_[count - 1];
    ibv_send_wr* const rest = std::exchange(last.next, nullptr);
    ready.Add(requests_.data(), &last);
    const int error = ready.Post(qp);
    last.next = rest;
    return error;
  }

 private:
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> elements_;
};

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
class LinkSendQueue {
 public:
  // Things that the links of an endpoint share, and its bounds. All outlive the link.
  struct Shared {
    SendBuffers& buffers;
    SendChain& chain;
    uint32_t max_inline_bytes;
    uint32_t max_unsignalled_bytes;  // WrChain
    uint32_t depth;  // WRs of one link at once; the drain marker has a slot beside them
  };

  // Posts to `qp`, which is destroyed when nothing is posted any more. `source` outlives the link.
  LinkSendQueue(ibv_qp* qp, LinkKey key, const Shared& shared, PeerSource& source)
      : qp_(qp),
        buffers_(shared.buffers),
        chain_(shared.chain),
        source_(source),
        max_inline_bytes_(shared.max_inline_bytes),
        max_unsignalled_bytes_(shared.max_unsignalled_bytes),
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
  // Whether enough frames are pending to leave while the turn goes on.
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
  // Whether the last pending SEND takes one more control frame without a body, and still travels
  // inline.
  bool FitsControl() const {
    return !pending_.empty() && pending_.back().use == SendUse::kControl &&
           pending_.back().frames < ControlFrames::kKinds;
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

  // An empty chain, for what this link posts next.
  WrChain NewChain() const { return WrChain(max_unsignalled_bytes_); }

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
  // Counts one more WR as posted: the drain marker, whose flush proves that all before it have
  // ended. Returns its wr_id. Nothing is posted afterwards but the marker itself.
  uint64_t ReserveDrainMarker();
  // The marker was not posted after all.
  void ForgetDrainMarker() { slots_.Advance(-1u); }
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
  const uint32_t max_unsignalled_bytes_;
  uint32_t send_bytes_ = 0;
  Told told_;
  SendSlots slots_;
  PendingSends pending_;
  uint32_t held_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SEND_QUEUE_H_
