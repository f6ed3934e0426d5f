// StreamPart: a frame's body, as a part of a stream's message. StreamAssembly: a message of several
// parts that is put together.
//
// A message's payload lies behind it. The bytes of the message are gathered on the heap, those of
// the payload in the Buffer that the reader gets. A part of StreamReceiver. One thread.

#ifndef VERBENA_RPC_STREAM_STREAM_ASSEMBLY_H_
#define VERBENA_RPC_STREAM_STREAM_ASSEMBLY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "verbena/rpc/stream/stream_memory.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

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

class StreamAssembly {
 public:
  // Whether a message is put together.
  bool begun() const { return total_ > 0; }
  uint32_t total() const { return total_; }
  bool complete() const { return come_ == total_; }
  // The bytes of the message itself that have come.
  const std::string& message() const { return message_; }
  // The memory that they have: never more than the whole message, or than twice what has come.
  size_t room() const { return room_; }
  // How much more of it the next `bytes` take.
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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_STREAM_ASSEMBLY_H_
