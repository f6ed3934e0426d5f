// The receiving half of a stream, on either side: StreamReceiver, its message in parts
// (StreamAssembly), memory for payloads, and the hooks of interceptors.
//
// A part of its stream; one thread. The stream's window and StreamBuffers bound what it holds.

#ifndef VERBENA_RPC_STREAM_RECEIVER_H_
#define VERBENA_RPC_STREAM_RECEIVER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/detail/stream_awaits.h"
#include "verbena/rpc/stream/memory.h"
#include "verbena/rpc/stream/sender.h"
#include "verbena/rpc/stream/windows.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Link;

// A frame's body, as a part of a stream's message. The bytes of a message's payload follow those of
// the message.
struct StreamPart {
  static constexpr uint32_t kRest = ~uint32_t{0};

  // Whether a message begins with it.
  bool is_first() const { return total != kRest; }
  uint32_t payload_bytes() const { return payload == 0 ? 0 : payload - 1; }

  uint32_t bytes;
  // The bytes of the message, with its payload, whose first part this is; 0 for a message in one
  // part, kRest for further parts.
  uint32_t total;
  // In a first part: 0 if the message has no payload, otherwise one more than the payload's bytes.
  uint32_t payload;
  // Whether it counts in the window of its stream alone.
  bool own;
};

// StreamAssembly: a message of several parts that is put together.
//
// The bytes of the message are gathered on the heap, those of its payload in the Buffer that the
// reader gets. A part of StreamReceiver. One thread.
class StreamAssembly {
 public:
  // Whether a message is put together.
  bool begun() const { return total_ > 0; }
  uint32_t total() const { return total_; }
  bool complete() const { return come_ == total_; }
  // The bytes of the message itself that have come.
  const std::string& message() const { return message_; }
  // The memory that message() has: never more than the whole message, or than twice the bytes that
  // have come.
  size_t room() const { return room_; }
  // How much more memory message() needs for the next `bytes`.
  size_t MoreRoomFor(uint32_t bytes) const {
    const size_t needed = message_.size() + OwnBytes(bytes);
    return needed <= room_ ? 0 : std::min<size_t>(message_bytes_, 2 * needed) - room_;
  }
  // How many of the next `bytes` are the message's own.
  uint32_t OwnBytes(uint32_t bytes) const {
    return std::min(bytes, message_bytes_ - static_cast<uint32_t>(message_.size()));
  }

  // `memory` has room for the payload, if that has bytes.
  void Begin(const StreamPart& first, Buffer memory) {
    VERBENA_DCHECK(!begun() && (memory || first.payload_bytes() == 0))
        << come_ << " of " << total_ << " bytes of another message have come";
    total_ = first.total;
    come_ = 0;
    marked_ = false;
    has_payload_ = first.payload != 0;
    message_bytes_ = first.total - first.payload_bytes();
    message_.clear();
    room_ = 0;
    payload_ = std::move(memory);
    if (payload_) payload_.set_size(first.payload_bytes());
  }
  void Add(const char* bytes, uint32_t size) {
    VERBENA_DCHECK(size <= total_ - come_) << size << " bytes behind " << come_ << " of " << total_;
    const uint32_t own = OwnBytes(size);
    if (const size_t more = MoreRoomFor(size)) GrowTo(room_ + more);
    message_.append(bytes, own);
    if (own < size) {
      const size_t offset = come_ + own - message_bytes_;
      std::memcpy(payload_.data() + offset, bytes + own, size - own);
    }
    come_ += size;
  }
  // Whether so many bytes have come since MarkProgress(); true if the message began since.
  bool HasProgressed(uint32_t bytes) const { return !marked_ || come_ - mark_ >= bytes; }
  void MarkProgress() {
    marked_ = true;
    mark_ = come_;
  }
  uint32_t come() const { return come_; }
  bool has_payload() const { return has_payload_; }
  Buffer TakePayload() { return std::move(payload_); }
  void End() {
    total_ = 0;
    room_ = 0;
    EmptyAndKeepLittle(message_);
    payload_.Reset();
  }

 private:
  // A string that grows by itself doubles, whatever it was asked to reserve.
  void GrowTo(size_t room) {
    room_ = room;
    if (message_.capacity() >= room) return;
    std::string larger;
    larger.reserve(room);
    larger.append(message_);
    message_.swap(larger);
  }

  uint32_t total_ = 0;
  uint32_t come_ = 0;
  uint32_t message_bytes_ = 0;
  bool has_payload_ = false;
  bool marked_ = false;
  uint32_t mark_ = 0;  // of what had come
  std::string message_;
  size_t room_ = 0;
  Buffer payload_;
};

// The payloads of a stream's messages: StreamBuffers gives them memory, and ReadWithPayload() reads
// a message that may have one.
//
// A payload is copied out of the receive buffers into the Buffer that its reader gets. A message
// whose reader finds no memory waits, and so do the messages behind it, so that the sender's window
// closes. The wait is bounded; at its end the stream fails. On the stream's executor's thread.

// The memory that one stream's payloads may have, within the bounds of the peer that sends them.
class StreamBuffers {
 public:
  virtual ~StreamBuffers() = default;
  // RESOURCE_EXHAUSTED if there is none now.
  virtual absl::StatusOr<Buffer> TryAllocate(size_t bytes) = 0;
  // Waits for memory. RESOURCE_EXHAUSTED, in words for the application, if that takes too long. The
  // object may be destroyed meanwhile.
  virtual Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) = 0;
};

// A Read's wait for memory. Ends early if the stream fails, or is gone.
class StreamMemoryWait {
 public:
  StreamMemoryWait(StreamReceiver& receiver, CancelScope* parent);
  StreamMemoryWait(const StreamMemoryWait&) = delete;
  StreamMemoryWait& operator=(const StreamMemoryWait&) = delete;
  ~StreamMemoryWait();

  CancelScope& scope() { return scope_; }
  // nullptr once the receiver is gone.
  StreamReceiver* receiver() const { return receiver_; }

  // The receiver calls these two.
  void EndEarly() { scope_.Request(); }
  void Forget() {
    receiver_ = nullptr;
    EndEarly();
  }

 private:
  StreamReceiver* receiver_;
  CancelScope scope_;
};

// While a message is put together, this many bytes of it, or all that are left, must come in each
// kMaxLandingWait.
inline constexpr uint32_t kLeastBytesInTime = 64u << 10;

// StreamReceiver: the half of a stream that takes messages from the peer, on either side.
//
// A message goes straight into the waiting reader's message. Without a reader its frames are copied
// out of the receive buffer into chunks (memory.h), as many as the window allows. A message that
// comes in parts is put together once a Read takes it; then its parts count as read, so that a
// message may be larger than the window. A message with a payload is read once its reader has
// memory for the payload (StreamBuffers). Once a Read has begun to take a message, its further
// parts must keep coming, because it holds memory; otherwise the stream fails. A part of its
// stream. One thread.
class StreamReceiver final : private SendWaiter,
                             private LinkedStream,
                             private UntoldStream,
                             private Timer {
 public:
  // Hears that a message could not be received: it does not parse, memory is short, or this side
  // does not take it. The stream gives no more messages.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnReceiveFailed(const absl::Status& status) = 0;
  };

  explicit StreamReceiver(Listener& listener) : listener_(listener) {}
  StreamReceiver(const StreamReceiver&) = delete;
  StreamReceiver& operator=(const StreamReceiver&) = delete;
  ~StreamReceiver() override;

  // A stream begins. `buffers` is for the payloads of its messages, and null if they have none.
  void Begin(StreamLink& link, CallId id, StreamBuffers* buffers);
  // The stream has ended for its owner: nothing is read any more, and the object may be used for
  // another stream.
  void Clear();

  // A kStreamMessage of the peer's, which StreamLink has counted. A failed Status closes the link.
  absl::Status OnMessage(const FrameHeader& frame, const char* body);
  // The peer sends no more messages; those that have come can still be read. False if the last one
  // is not complete.
  bool End();
  bool ended() const { return ended_; }
  // Null, as by default: nobody wants to hear of messages. Stays until it is set again.
  void set_message_listener(StreamListener* listener) { message_listener_ = listener; }
  // From now on Reads fail with `status`, and messages that have come are dropped. Only the first
  // call counts.
  void Fail(const absl::Status& status);
  // Drops the messages that have come, and those that will come.
  void Discard();

  // For ReadWithPayload().
  StreamBuffers* buffers() const { return buffers_; }
  // Ends the wait at once if there is nothing to wait for any more.
  void BeginMemoryWait(StreamMemoryWait& wait);
  void EndMemoryWait() { memory_wait_ = nullptr; }
  void FailForMemory(const absl::Status& status) { FailHere(status); }

 private:
  friend StreamRead;

  using Part = StreamPart;
  enum class Taken : uint8_t { kPart, kMessage, kNeedsMemory, kFailed };
  // A message that came for a Read that was destroyed.
  struct Returned {
    std::string message;
    Buffer payload;
    bool has_payload = false;
  };

  // For StreamRead. True: it waits. Otherwise its state says how it ended.
  bool Start(StreamRead& read);
  void Leave(StreamRead& read);
  // Takes a Read off that was cancelled and has not resumed yet. The next Read gets the message
  // that came for it.
  void DropCancelledRead();
  bool reader_waits() const;
  // Notes whether the peer owes a message: it does as long as a Read waits.
  void SetPeerOwes(bool owes);
  void EndReader(StreamRead::State state);

  absl::Status CheckPart(const FrameHeader& frame, Part& part);
  absl::Status CheckFirstPart(const FrameHeader& frame, Part& part);
  // Whether this side takes no message that begins with `part`, and why not: it is beyond a limit,
  // or has a payload of which this side's .proto knows nothing.
  bool IsRefused(const Part& part) const;
  [[gnu::cold]] absl::Status Refusal(const Part& part) const;
  // False: the Read has no memory for the payload of the message that begins with `part`, and is
  // told how much it needs.
  bool HasMemoryFor(const Part& part, StreamRead& read);
  void Take(const Part& part, const char* bytes, StreamRead& read);
  Taken TakeInto(const Part& part, const char* bytes, StreamRead& read);
  // A message in one part, and one of several parts that is complete.
  Taken TakeWhole(const Part& part, const char* bytes, StreamRead& read);
  Taken TakeAssembled(StreamRead& read);
  bool Parse(const char* bytes, size_t size, MessageLite& into);
  void EndAssembly();
  // The reader is done with the message that it read last, which has counted until now.
  void EndCounted();
  // Starts a timer that looks whether more of the message has come.
  void WatchAssembly();
  void StopWatch();
  void OnTimer() override;
  // Copies a part out of the receive buffer.
  void Keep(const Part& part, const char* bytes);
  // Takes parts that were kept until a message is whole.
  Taken TakeKept(StreamRead& read);
  void DropKept();
  void Consume(const Part& part);
  // Whether the peer should hear how far the window reaches.
  bool MustTell() const;
  bool has_untold() const { return window_.untold() >= kOwnWindowBytes / 2; }
  void TellIfDue();
  void SendLimit();
  // Fails here, and tells the owner.
  [[gnu::cold, gnu::noinline]] void FailHere(const absl::Status& status);
  void OnWritable(Link& link) override;
  void OnStreamLinkLost() override;
  void OnStreamLinkTight() override { TellIfDue(); }

  Listener& listener_;
  StreamLink* stream_link_ = nullptr;   // nullptr once lost
  std::shared_ptr<StreamShare> share_;  // of the last link, which may be lost
  StreamBuffers* buffers_ = nullptr;
  CallId id_;
  ReceiveWindow window_;
  uint64_t max_message_bytes_ = 0;
  uint64_t max_payload_bytes_ = 0;
  uint32_t part_left_ = 0;  // of the message whose parts arrive
  bool ended_ = false;
  bool end_told_ = false;  // a Read has found the end
  bool discards_ = false;
  StreamChunk* first_ = nullptr;
  StreamChunk* last_ = nullptr;
  StreamAssembly assembly_;
  Scheduler* watch_ = nullptr;  // of the timer while it runs
  size_t counted_ = 0;          // the message that was read last, if it came in parts
  StreamRead* reader_ = nullptr;
  bool peer_owes_ = false;
  StreamListener* message_listener_ = nullptr;
  StreamMemoryWait* memory_wait_ = nullptr;  // of the next Read
  std::unique_ptr<Returned> returned_;
  absl::Status failure_;
};

// MessageHooks: tells the interceptors of one stream of each message that it sends or receives.
//
// A stream that has interceptors which see messages has one, as the StreamListener of its halves.
// Other streams pay one branch a message. Part of the stream, on its executor's thread.
template <typename Interceptor, typename View>
class MessageHooks final : private StreamListener {
 public:
  using List = std::vector<std::shared_ptr<Interceptor>>;

  static bool AreWanted(const List& interceptors) {
    return std::any_of(interceptors.begin(), interceptors.end(),
                       [](const auto& each) { return each->sees_messages(); });
  }

  // All outlive this object. `mine` is this side. Interceptors hear nothing of the message of a
  // side that does not stream.
  MessageHooks(const List& interceptors, const View& view, Streams mine, StreamSender& sender,
               StreamReceiver& receiver)
      : interceptors_(interceptors),
        view_(view),
        is_client_(mine == Streams::kClient),
        sender_(sender),
        receiver_(receiver) {
    const Streams streams = view.method().streams;
    const Streams theirs = is_client_ ? Streams::kServer : Streams::kClient;
    if (streams == mine || streams == Streams::kBoth) sender_.set_message_listener(this);
    if (streams == theirs || streams == Streams::kBoth) receiver_.set_message_listener(this);
  }
  MessageHooks(const MessageHooks&) = delete;
  MessageHooks& operator=(const MessageHooks&) = delete;
  ~MessageHooks() {
    sender_.set_message_listener(nullptr);
    receiver_.set_message_listener(nullptr);
  }

 private:
  void OnSent(const MessageLite& message) noexcept override {
    Tell(is_client_, [&](Interceptor& each) { each.OnMessageSent(view_, message); });
  }
  void OnReceived(const MessageLite& message) noexcept override {
    Tell(!is_client_, [&](Interceptor& each) { each.OnMessageReceived(view_, message); });
  }

  // The first interceptor is next to the caller at a client, and next to the wire at a server.
  template <typename Function>
  void Tell(bool first_is_first, Function function) const {
    const size_t count = interceptors_.size();
    for (size_t i = 0; i < count; ++i) {
      Interceptor& each = *interceptors_[first_is_first ? i : count - 1 - i];
      if (each.sees_messages()) function(each);
    }
  }

  const List& interceptors_;
  const View& view_;
  const bool is_client_;
  StreamSender& sender_;
  StreamReceiver& receiver_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_RECEIVER_H_
