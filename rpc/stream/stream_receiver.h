// StreamReceiver: the half of a stream that takes messages from the peer, on either side.
//
// A message goes straight into the waiting reader's message. Without a reader its frames are copied
// out of the receive buffer into chunks (stream_memory.h), as many as the window allows. A message
// that comes in parts is put together once it is read; its parts count as read then, so that a
// message may be larger than the window. A message with a payload is read once its reader has
// memory for that (stream_payloads.h). Once a Read has begun to take a message, its further parts
// must keep coming, because it holds memory; otherwise the stream fails. A part of its stream. One
// thread.

#ifndef VERBENA_RPC_STREAM_STREAM_RECEIVER_H_
#define VERBENA_RPC_STREAM_STREAM_RECEIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call/call_id.h"
#include "verbena/rpc/stream/stream_assembly.h"
#include "verbena/rpc/stream/stream_link.h"
#include "verbena/rpc/stream/stream_listener.h"
#include "verbena/rpc/stream/stream_payloads.h"
#include "verbena/rpc/stream_awaits.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// While a message is put together, this much of it, or its rest, must come in each kMaxLandingWait.
inline constexpr uint32_t kLeastBytesInTime = 64u << 10;

class StreamReceiver final : private SendWaiter,
                             private LinkedStream,
                             private UntoldStream,
                             private Timer {
 public:
  // Hears that a message could not be received: it does not parse, or memory is short. The stream
  // gives no more messages.
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
  // The stream has ended for its owner: nothing is read any more, and the object is as new.
  void Clear();

  // A kStreamMessage of the peer's, which StreamLink has counted. A failed Status closes the link.
  absl::Status OnMessage(const FrameHeader& frame, const char* body);
  // The peer sends no more messages; those that have come can still be read. False if the last one
  // is not complete.
  bool End();
  bool ended() const { return ended_; }
  // Null, as by default: nobody wants to hear of messages. Stays until it is set again.
  void set_message_listener(StreamListener* listener) { message_listener_ = listener; }
  // Reads fail with `status`, and what has come is dropped. Only the first one counts.
  void Fail(const absl::Status& status);
  // Drops what has come, and what will.
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
  // Takes a Read off that was cancelled and has not resumed yet. What came for it is the next
  // Read's.
  void DropCancelledRead();
  bool reader_waits() const;
  // The peer owes a message as long as a Read waits for it.
  void SetPeerOwes(bool owes);
  void EndReader(StreamRead::State state);

  absl::Status CheckPart(const FrameHeader& frame, Part& part);
  absl::Status CheckFirstPart(const FrameHeader& frame, Part& part);
  // Whether a message that begins with `part` is beyond this side's own limit.
  bool IsTooLarge(const Part& part) const;
  [[gnu::cold]] absl::Status TooLarge(const Part& part) const;
  // False: the Read has no memory for the payload of the message that begins with `part`, and is
  // told how much it needs.
  bool HasMemoryFor(const Part& part, StreamRead& read);
  void Take(const Part& part, const char* bytes, StreamRead& read);
  Taken TakeInto(const Part& part, const char* bytes, StreamRead& read);
  // A message in one part, and one of several parts that is complete.
  Taken TakeWhole(const Part& part, const char* bytes, StreamRead& read);
  Taken TakeAssembled(StreamRead& read);
  bool Parse(const char* bytes, size_t size, google::protobuf::MessageLite& into);
  void EndAssembly();
  // The reader is done with the message that it read last, which has counted until now.
  void EndCounted();
  // Looks in a while whether more of the message has come.
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
  uint32_t part_left_ = 0;  // of the message whose parts arrive
  bool ended_ = false;
  bool discards_ = false;
  StreamChunk* first_ = nullptr;
  StreamChunk* last_ = nullptr;
  StreamAssembly assembly_;
  Scheduler* watch_ = nullptr;  // runs the timer, if that runs
  size_t counted_ = 0;          // the message that was read last, if it came in parts
  StreamRead* reader_ = nullptr;
  bool peer_owes_ = false;
  StreamListener* message_listener_ = nullptr;
  StreamMemoryWait* memory_wait_ = nullptr;  // of the Read that is next
  std::unique_ptr<Returned> returned_;
  absl::Status failure_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_STREAM_RECEIVER_H_
