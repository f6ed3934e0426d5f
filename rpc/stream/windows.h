// Windows of streams: how far a sender may be ahead of the peer's readers, on one stream and on all
// streams of a link (StreamLink).
//
// A session owns its StreamLink; one thread. kStreamWindowBytes and kLinkWindowBytes bound them.

#ifndef VERBENA_RPC_STREAM_WINDOWS_H_
#define VERBENA_RPC_STREAM_WINDOWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/stream/memory.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class Link;

// (start)
inline constexpr uint32_t kStreamWindowBytes = 256 * 1024;
inline constexpr uint32_t kLinkWindowBytes = 16 * 1024 * 1024;
// The first part of each stream's window, which does not count in the link's window. With the frame
// that begins last in it, it takes at most 12 KiB of memory for each of 10,000 streams with the
// default eager size.
inline constexpr uint32_t kOwnWindowBytes = 8 * 1024;
// When less than this is left of the link's window, the receiver announces each stream's window
// sooner.
inline constexpr uint32_t kTightLinkBytes = kLinkWindowBytes / 16;
// The cost of a frame beside its body: that of an empty message.
inline constexpr uint32_t kStreamFrameCost = sizeof(FrameHeader);
// A larger message is cut into parts of this size, or of the largest body of a frame if that is
// less. So each part fits the window of a stream several times.
inline constexpr uint32_t kMaxStreamPartBytes = 32 * 1024;
// A receiver's limit is at most this far ahead of the bytes that its peer has sent.
inline constexpr uint32_t kMaxWindowAhead = 1u << 30;

constexpr uint32_t StreamCost(uint32_t body_bytes) { return body_bytes + kStreamFrameCost; }

// Whether the next frame begins within the first kOwnWindowBytes of a stream's window, of which
// `left` bytes are left.
constexpr bool BeginsInOwnWindow(uint32_t left) {
  return left > kStreamWindowBytes - kOwnWindowBytes;
}

// How far a sender may go, and has gone.
class SendWindow {
 public:
  explicit SendWindow(uint32_t initial = 0) : limit_(initial) {}

  uint32_t available() const { return limit_ - sent_; }
  void Take(uint32_t cost) {
    VERBENA_DCHECK(cost <= available()) << cost << " of a window of " << available() << " bytes";
    sent_ += cost;
  }
  void GiveBack(uint32_t cost) { sent_ -= cost; }
  // The peer says that the window reaches to `limit`, further than before. A failed Status is a
  // violation.
  absl::Status Open(uint32_t limit);

 private:
  uint32_t limit_;
  uint32_t sent_ = 0;
};

// How far a receiver has let its peer go.
class ReceiveWindow {
 public:
  explicit ReceiveWindow(uint32_t bytes = 0) : bytes_(bytes), limit_(bytes) {}

  // The peer has sent a frame of this cost. False if it is beyond the window: a violation.
  bool Receive(uint32_t cost);
  void Consume(uint32_t cost) {
    VERBENA_DCHECK(cost <= unread()) << cost << " bytes are read, of " << unread() << " that came";
    consumed_ += cost;
  }
  // How much the peer may send.
  uint32_t left() const { return limit_ - received_; }
  // How much was consumed that the peer has not heard of.
  uint32_t untold() const { return consumed_ + bytes_ - limit_; }
  // Whether untold() is so much that the peer should hear of it.
  bool due() const { return untold() >= bytes_ / 4; }
  // The limit to tell the peer next. Move() puts it in force.
  uint32_t next_limit() const { return consumed_ + bytes_; }
  void Move() { limit_ = next_limit(); }
  uint32_t unread() const { return received_ - consumed_; }

 private:
  uint32_t bytes_;
  uint32_t limit_;
  uint32_t received_ = 0;
  uint32_t consumed_ = 0;
};

// A sender that waits for the link's window.
class LinkWindowWaiter : public IntrusiveNode<LinkWindowWaiter> {
 public:
  virtual ~LinkWindowWaiter() = default;
  // There is room for cost_wanted. The waiter is off the queue.
  virtual void OnLinkWindow() = 0;

  uint32_t cost_wanted = 0;
};

// A half of a stream that uses the link. Hears once that the link is lost, and uses it no more.
class LinkedStream : public IntrusiveNode<LinkedStream> {
 public:
  virtual ~LinkedStream() = default;
  virtual void OnStreamLinkLost() = 0;
};

// A stream whose peer has not heard how much its reader has taken. If the link's window is used up,
// the peer must hear it, because it can only send within the streams' own windows
// (kOwnWindowBytes).
class UntoldStream : public IntrusiveNode<UntoldStream> {
 public:
  virtual ~UntoldStream() = default;
  // The link's window is nearly used up, so the peer may have only the streams' own windows left.
  // Must end no stream.
  virtual void OnStreamLinkTight() = 0;
};

// StreamLink: the window that all streams of one link share, in each direction.
//
// A frame with a message costs its body and kStreamFrameCost. A sender may be ahead of the peer's
// readers by kStreamWindowBytes on one stream, and by kLinkWindowBytes on all streams of the link.
// The receiver tells how far it may go: a sum of costs since the stream, or the link, began, modulo
// 2^32. Frames that begin within the first kOwnWindowBytes of their stream's window do not count in
// that of the link, so a stream whose messages are read goes on though others fill the link's
// window. A part of a session; knows the streams that use the link, and tells them when it is lost,
// or when its window becomes tight. One thread.
class StreamLink final : private SendWaiter, private Timer {
 public:
  // `room_grace`: how long senders wait for room while no frame leaves; then the link closes. None:
  // they wait for ever.
  explicit StreamLink(std::optional<Duration> room_grace = std::nullopt)
      : room_grace_(room_grace) {}
  StreamLink(const StreamLink&) = delete;
  StreamLink& operator=(const StreamLink&) = delete;

  // Call it before a stream uses this object; further calls are harmless. `share` is the peer's.
  void Attach(Link& link, const std::shared_ptr<StreamShare>& share) {
    VERBENA_DCHECK(link_ == nullptr || link_ == &link) << "streams of two links share a window";
    link_ = &link;
    if (share_ == nullptr) share_ = share;
  }
  // The link is lost. The session has told its calls, and then tells this; what is left of their
  // streams ends here.
  void OnLinkDown();
  void Add(LinkedStream& stream) { streams_.PushBack(stream); }
  // Adds a stream that is in no such list. It hears once when the link's window becomes tight, and
  // leaves the list then. So a peer that fills the window again and again causes work only for what
  // was read meanwhile.
  void AddUntold(UntoldStream& stream) { untold_.PushBack(stream); }

  // The next four are valid while streams use this object.
  Link& link() const {
    VERBENA_DCHECK(link_ != nullptr) << "a stream uses a link that is lost";
    return *link_;
  }
  Scheduler& scheduler() const;
  // The largest message of a stream, and the largest payload of one, by this side's limits.
  size_t max_message_bytes() const;
  size_t max_payload_bytes() const;
  const std::shared_ptr<StreamShare>& share() const { return share_; }

  // Each frame with a message comes here first, also if its stream has ended. A failed Status
  // closes the link.
  absl::Status OnReceived(const FrameHeader& frame);
  // A frame with a message came for a stream that has ended: gives back what it took of the window.
  void Drop(const FrameHeader& frame) {
    if (frame.outcome == kCountsInLink) Consume(StreamCost(frame.body_bytes));
  }
  // A reader has taken the bytes of a frame that counts here, or nobody will.
  void Consume(uint32_t cost);
  // Whether the peer may have used up the window.
  bool is_tight() const { return receive_.left() < kTightLinkBytes; }
  // The window has become tight.
  void TellUntold();
  // The peer's readers have taken bytes.
  absl::Status OnWindow(const FrameHeader& frame);

  // Takes a part of the window; false if there is too little, or others wait: then Await().
  bool TryTake(uint32_t cost);
  void GiveBack(uint32_t cost) { send_.GiveBack(cost); }
  void Await(LinkWindowWaiter& sender) { senders_.Add(sender); }
  // A sender has stopped waiting, or given back a part of the window: the next one may have room
  // now.
  void WakeSenders() {
    if (!senders_.serving()) Wake();
  }

  // A sender or a reader begins or stops waiting for what the peer owes: window, room or a message.
  void BeginWait() { ++waits_; }
  void EndWait() {
    VERBENA_DCHECK(waits_ > 0);
    --waits_;
  }
  bool has_waits() const { return waits_ > 0; }
  // A wait for room in the link begins or ends; it is one of the waits above. One timer looks after
  // all waits for room, once in each room_grace.
  void BeginRoomWait() {
    if (++room_waits_ == 1 && room_grace_.has_value()) WatchRoom();
  }
  void EndRoomWait() {
    VERBENA_DCHECK(room_waits_ > 0);
    --room_waits_;
  }

  uint32_t unread() const { return receive_.unread(); }

 private:
  // How much a stream reads before the peer must hear of it: a quarter of the window that is not
  // taken by unread bytes. So streams that nobody reads take no more of the window than that.
  uint32_t least_told() const {
    return std::max(kMaxStreamPartBytes, (kLinkWindowBytes - receive_.unread()) / 4);
  }
  void SendLimit();
  void OnWritable(Link& link) override;
  void Wake();
  [[gnu::cold, gnu::noinline]] void WatchRoom();
  void StartTimer();
  void OnTimer() override;

  Link* link_ = nullptr;
  std::shared_ptr<StreamShare> share_;
  SendWindow send_{kLinkWindowBytes};
  ReceiveWindow receive_{kLinkWindowBytes};
  uint32_t waits_ = 0;
  uint32_t room_waits_ = 0;
  const std::optional<Duration> room_grace_;
  bool timer_running_ = false;
  std::optional<uint64_t> frames_sent_;  // at the timer's start, if somebody has waited since
  WaiterQueue<LinkWindowWaiter> senders_;
  IntrusiveList<LinkedStream> streams_;
  IntrusiveList<UntoldStream> untold_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_WINDOWS_H_
