// StreamReceiver: the half of a stream that takes messages from the peer, on either side.
//
// A message goes straight into the waiting reader's message. Without a reader its frames are copied
// out of the receive buffer into chunks (stream_memory.h), as many as the window allows. A message
// that comes in parts is put together once it is read; its parts count as read then, so that a
// message may be larger than the window. A part of its stream. One thread.

#ifndef VERBENA_RPC_INTERNAL_STREAM_RECEIVER_H_
#define VERBENA_RPC_INTERNAL_STREAM_RECEIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/internal/call_id.h"
#include "verbena/rpc/internal/stream_link.h"
#include "verbena/rpc/stream_awaits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

class StreamReceiver final : private SendWaiter, private LinkedStream {
 public:
  // Hears that a message could not be received: it does not parse, or memory is short. The stream
  // gives no more messages.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnReceiveFailed(const absl::Status& status) = 0;
  };

  explicit StreamReceiver(Owner& owner) : owner_(owner) {}
  StreamReceiver(const StreamReceiver&) = delete;
  StreamReceiver& operator=(const StreamReceiver&) = delete;
  ~StreamReceiver() override;

  // A stream begins.
  void Begin(StreamLink& link, CallId id);
  // The stream has ended for its owner: nothing is read any more, and the object is as new.
  void Clear();

  // A kStreamMessage of the peer's, which StreamLink has counted. A failed Status closes the link.
  absl::Status OnMessage(const FrameHeader& frame, const char* body);
  // The peer sends no more messages; those that have come can still be read. False if the last one
  // is not complete.
  bool End();
  bool ended() const { return ended_; }
  // Reads fail with `status`, and what has come is dropped. Only the first one counts.
  void Fail(const absl::Status& status);
  // Drops what has come, and what will.
  void Discard();
  // A message in parts counts until Clear(), since its reader keeps it as long. Precondition:
  // nothing has come.
  void CountUntilClear() { counts_until_clear_ = true; }

 private:
  friend StreamRead;

  // A frame's body, as a part of a message.
  struct Part {
    uint32_t bytes;
    // The bytes of the message whose first part this is; 0 for a message in one part, kRest for
    // further parts.
    uint32_t total;
    // Whether it counts in the window of its stream alone.
    bool own;
  };
  static constexpr uint32_t kRest = ~uint32_t{0};
  enum class Taken : uint8_t { kPart, kMessage, kFailed };

  // For StreamRead. True: it waits. Otherwise its state says how it ended.
  bool Start(StreamRead& read);
  void Leave(StreamRead& read);
  bool reader_waits() const;
  void EndReader(StreamRead::State state);

  absl::Status CheckPart(const FrameHeader& frame, Part& part);
  void Take(const Part& part, const char* bytes, StreamRead& read);
  Taken TakeInto(const Part& part, const char* bytes, google::protobuf::MessageLite& into);
  bool Parse(const char* bytes, size_t size, google::protobuf::MessageLite& into);
  void EndAssembly();
  // Copies a part out of the receive buffer.
  void Keep(const Part& part, const char* bytes);
  // Takes parts that were kept until a message is whole.
  Taken TakeKept(google::protobuf::MessageLite& into);
  void DropKept();
  void Consume(const Part& part);
  // Whether the peer should hear how far the window reaches.
  bool MustTell() const;
  void TellIfDue();
  void SendLimit();
  // Fails here, and tells the owner.
  [[gnu::cold, gnu::noinline]] void FailHere(const absl::Status& status);
  void OnWritable(Link& link) override;
  void OnStreamLinkLost() override;
  void OnStreamLinkTight() override { TellIfDue(); }

  Owner& owner_;
  StreamLink* link_ = nullptr;          // nullptr once lost
  std::shared_ptr<StreamShare> share_;  // of the last link, which may be lost
  CallId id_;
  ReceiveWindow window_;
  uint64_t max_message_bytes_ = 0;
  uint32_t part_left_ = 0;  // of the message whose parts arrive
  bool ended_ = false;
  bool discards_ = false;
  StreamChunk* first_ = nullptr;
  StreamChunk* last_ = nullptr;
  std::string assembly_;
  uint32_t assembly_total_ = 0;  // 0 while no message is put together
  bool counts_until_clear_ = false;
  size_t counted_ = 0;  // until Clear()
  StreamRead* reader_ = nullptr;
  std::string returned_;  // a message that came for a Read that was destroyed
  bool has_returned_ = false;
  absl::Status failure_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_INTERNAL_STREAM_RECEIVER_H_
