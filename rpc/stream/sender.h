// The half of a stream that sends messages to the peer, on either side: StreamSender; and
// StreamListener, which hears of each message.
//
// Parts of a stream, bounded by its windows. One thread.

#ifndef VERBENA_RPC_STREAM_SENDER_H_
#define VERBENA_RPC_STREAM_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/detail/stream_awaits.h"
#include "verbena/rpc/stream/windows.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Link;

// StreamListener: hears of each message of a stream, in order, once.
//
// Set for the halves of a stream, which it outlives. Called on the stream's executor, within the
// transport: it must neither throw nor use the stream.
class StreamListener {
 public:
  virtual ~StreamListener() = default;
  // A Write's message begins to leave.
  virtual void OnSent(const MessageLite& message) noexcept = 0;
  // A Read has a message.
  virtual void OnReceived(const MessageLite& message) noexcept = 0;
};

// StreamSender: the half of a stream that sends messages to the peer, on either side.
//
// A message is serialized straight into a frame if it fits one, with its payload behind it.
// Otherwise it is serialized into memory of the sender, and leaves in parts; the payload follows,
// straight from the writer's memory. Each frame waits for the window of its stream, for that of all
// streams of the link, and for room in the link; until then the writer waits. If a writer is
// destroyed or cancelled, its message is not sent, unless a part has left: then the other parts
// follow by themselves, from memory that counts in the peer's share. If that has no room for them,
// nothing more is sent. A part of its stream. One thread.
class StreamSender final : private SendWaiter, private LinkWindowWaiter, private LinkedStream {
 public:
  StreamSender() = default;
  StreamSender(const StreamSender&) = delete;
  StreamSender& operator=(const StreamSender&) = delete;
  ~StreamSender() override;

  // A stream begins. `method` is borrowed until Clear().
  void Begin(StreamLink& link, CallId id, const char* method);
  // The stream has ended for its owner; the object may be used for another stream.
  void Clear();

  // Nothing more is sent; writes fail with `reason`. Only the first call counts.
  void Close(absl::Status reason);
  // Sends a message that is serialized already, as a writer does. Precondition: nothing was sent.
  void SendSerialized(std::string message);
  // The messages so far are whole: sends kStreamEnd behind them, once, and forgets lost().
  void SendEnd();
  // The status of the first Write that failed, or was given up, although the stream goes on; OK if
  // there was none since SendEnd().
  const absl::Status& lost() const { return lost_; }
  // A Write has failed, as `status` says. Counts unless the stream has ended.
  void NoteLost(const absl::Status& status);
  // The peer's readers have taken bytes. A failed Status closes the link.
  absl::Status OnWindow(const FrameHeader& frame);

  // Null, as by default: nobody wants to hear of messages. Stays until it is set again.
  void set_message_listener(StreamListener* listener) { message_listener_ = listener; }
  bool closed() const { return closed_; }
  bool end_sent() const { return end_wanted_; }
  // Whether a message is leaving in parts, and its last part has not left.
  bool in_message() const { return parts_total_ > 0; }
  // Whether Close() came between two parts.
  bool cut_short() const { return cut_short_; }

 private:
  friend StreamWrite;
  enum class Wait : uint8_t { kNone, kWindow, kLinkWindow, kRoom };

  // For StreamWrite. True: it waits. Otherwise its status says how it ended.
  bool Start(StreamWrite& write);
  void Leave(StreamWrite& write);

  // Sends what there is to send, as far as it can.
  void Advance();
  // Writes the writer's message, whose size was just computed, to `to`.
  void Serialize(char* to);
  // Begins with the writer's message, in one frame or in parts. False if it must wait.
  bool SendMessage();
  [[gnu::cold]] absl::Status TooLarge(size_t bytes, size_t payload_bytes) const;
  bool SendPart();
  // Begins with the message in parts_, and the payload behind it.
  void BeginParts(const BorrowedPayload& payload);
  // Fills a frame's body with the next part.
  void CopyPart(char* body, uint32_t bytes);
  void EndParts();
  // The writer of the message in parts is gone, and its payload with it.
  void KeepUnsent();
  // Frees the message in parts, and its share of memory.
  void DropParts();
  // Room for a frame, or nullptr: then it waits, as wait_ says.
  char* Reserve(FrameHeader frame, uint32_t body_bytes);
  // Gives back what was taken of the windows for the frame that waits for room.
  void GiveBackReserved();
  FrameHeader PartFrame(uint32_t bytes) const;
  uint32_t next_part_bytes() const;
  uint32_t max_part_bytes() const;
  void EndWriter(absl::Status status);
  // Ends any wait. Gives back what was taken of the windows for a frame that waits for room.
  void StopWaiting();
  void SetWait(Wait wait);
  void OnWritable(Link& link) override;
  void OnLinkWindow() override;
  void OnStreamLinkLost() override;

  StreamLink* stream_link_ = nullptr;   // nullptr once lost
  std::shared_ptr<StreamShare> share_;  // of the last link, which may be lost
  CallId id_;
  const char* method_ = "";
  SendWindow window_;
  size_t max_message_bytes_ = 0;
  size_t max_payload_bytes_ = 0;
  Wait wait_ = Wait::kNone;
  uint32_t reserved_ = 0;  // of the windows, for the frame that waits for room
  uint8_t reserved_in_ = kCountsInLink;
  StreamWrite* writer_ = nullptr;
  StreamListener* message_listener_ = nullptr;
  std::string parts_;  // the message that leaves in parts, from parts_base_ on
  BufferView tail_;    // its payload, of writer_
  uint32_t parts_base_ = 0;
  uint32_t parts_total_ = 0;
  uint32_t parts_payload_ = 0;  // as their first frame tells
  uint32_t parts_sent_ = 0;
  size_t parts_counted_ = 0;      // of parts_, in the peer's share of memory
  bool writer_in_parts_ = false;  // parts_ is the message of writer_
  bool end_wanted_ = false;
  bool end_sent_ = false;
  bool closed_ = false;
  bool cut_short_ = false;
  absl::Status reason_;
  absl::Status lost_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_SENDER_H_
