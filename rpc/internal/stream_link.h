// StreamLink: the part of all streams of one link: the window that they share, in each direction.
//
// A frame with a message costs its body and kStreamFrameCost. A sender may be ahead of the peer's
// readers by kStreamWindowBytes on one stream, and by kLinkWindowBytes on all streams of the link.
// The receiver tells how far it may go: a sum of costs since the stream, or the link, began, modulo
// 2^32. A part of a session; knows the streams that use the link, and tells them when it is lost.
// One thread.

#ifndef VERBENA_RPC_INTERNAL_STREAM_LINK_H_
#define VERBENA_RPC_INTERNAL_STREAM_LINK_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "verbena/rpc/internal/stream_memory.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/waiter_queue.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {

// (start)
inline constexpr uint32_t kStreamWindowBytes = 256 * 1024;
inline constexpr uint32_t kLinkWindowBytes = 16 * 1024 * 1024;
// An empty message costs as much.
inline constexpr uint32_t kStreamFrameCost = sizeof(FrameHeader);
// A larger message is cut into parts of this size, or of the largest body of a frame if that is
// less. So each part fits the window of a stream several times.
inline constexpr uint32_t kMaxStreamPartBytes = 32 * 1024;
// A receiver's limit is at most as far ahead of what its peer has sent.
inline constexpr uint32_t kMaxWindowAhead = 1u << 30;

constexpr uint32_t StreamCost(uint32_t body_bytes) { return body_bytes + kStreamFrameCost; }

// How far a sender may go, and has gone.
class SendWindow {
 public:
  explicit SendWindow(uint32_t initial = 0) : limit_(initial) {}

  uint32_t available() const { return limit_ - sent_; }
  void Take(uint32_t cost) { sent_ += cost; }
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

  // The peer has sent so much. False if that is beyond the window: a violation.
  bool Receive(uint32_t cost);
  void Consume(uint32_t cost) { consumed_ += cost; }
  // Whether so much was consumed that the peer should hear of it.
  bool due() const { return consumed_ + bytes_ - limit_ >= bytes_ / 4; }
  // The limit that the peer is to hear of, and from then on the one in force.
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

// A stream that uses the link. Hears once that the link is lost, and uses it no more.
class LinkedStream : public IntrusiveNode<LinkedStream> {
 public:
  virtual ~LinkedStream() = default;
  virtual void OnStreamLinkLost() = 0;
};

class StreamLink final : private SendWaiter {
 public:
  StreamLink() = default;
  StreamLink(const StreamLink&) = delete;
  StreamLink& operator=(const StreamLink&) = delete;

  // Before a stream uses it; again as often as the session likes. `share` is the peer's.
  void Attach(Link& link, const std::shared_ptr<StreamShare>& share) {
    link_ = &link;
    if (share_ == nullptr) share_ = share;
  }
  // The link is lost. The session has told its calls, and then tells this; what is left of their
  // streams ends here.
  void OnLinkDown();
  void Add(LinkedStream& stream) { streams_.PushBack(stream); }

  // Valid while streams use it.
  Link& link() const { return *link_; }
  const std::shared_ptr<StreamShare>& share() const { return share_; }

  // Each frame with a message comes here first, also if its stream has ended. A failed Status
  // closes the link.
  absl::Status OnReceived(uint32_t cost);
  // A reader has taken a frame's bytes, or nobody will.
  void Consume(uint32_t cost);
  // The peer's readers have taken bytes.
  absl::Status OnWindow(const FrameHeader& frame);

  // Takes a part of the window; false if there is too little, or others wait: then Await().
  bool TryTake(uint32_t cost);
  void GiveBack(uint32_t cost) { send_.GiveBack(cost); }
  void Await(LinkWindowWaiter& sender) { senders_.Add(sender); }
  // A sender waits no more, or has given back: the next one may have room now.
  void WakeSenders() {
    if (!senders_.serving() && !VERBENA_MUTANT(kWindowWakesNobody)) Wake();
  }

  // A sender begins or stops waiting for what the peer owes: window, or room.
  void BeginWait() { ++waits_; }
  void EndWait() { --waits_; }
  bool has_waits() const { return waits_ > 0; }

  uint32_t unread() const { return receive_.unread(); }

 private:
  void SendLimit();
  void OnWritable(Link& link) override;
  void Wake();

  Link* link_ = nullptr;
  std::shared_ptr<StreamShare> share_;
  SendWindow send_{kLinkWindowBytes};
  ReceiveWindow receive_{kLinkWindowBytes};
  uint32_t waits_ = 0;
  WaiterQueue<LinkWindowWaiter> senders_;
  IntrusiveList<LinkedStream> streams_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_INTERNAL_STREAM_LINK_H_
