// BesideSender, BesideReceiver: the two ends of bytes that belong to a stream's REQUEST or RESPONSE
// but do not fit its frame: a large context block, or the Status of a failure.
//
// The bytes travel in frames beside the stream's messages (kBesideMessages). These frames count in
// no window, so a reader that takes no messages does not hold them up; the receiver's bound limits
// them instead. The bytes that a receiver keeps count in the peer's share of memory for streams
// until the receiver is destroyed, or drops them for want of memory. The bytes of a sender count
// there after CountIn(): a server counts the failures that it sends, a client does not count its
// own context. A part of a stream. One thread.

#ifndef VERBENA_RPC_STREAM_BESIDE_H_
#define VERBENA_RPC_STREAM_BESIDE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/stream/memory.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class Link;

class BesideSender {
 public:
  // `bytes` is not empty.
  explicit BesideSender(std::string bytes) : bytes_(std::move(bytes)) {
    VERBENA_CHECK(!bytes_.empty()) << "nothing to send beside a stream's messages";
  }
  BesideSender(const BesideSender&) = delete;
  BesideSender& operator=(const BesideSender&) = delete;
  ~BesideSender();

  size_t size() const { return bytes_.size(); }
  // Counts the bytes in `share` until this object is destroyed. False, and nothing counts, if
  // `share` is used up. Call it at most once.
  bool CountIn(const std::shared_ptr<StreamShare>& share);
  // Gives the link as many bytes as it has room for. True once the link has all of them; otherwise
  // call it again when there is room for a frame of next_bytes().
  bool Send(Link& link, CallId id);
  size_t next_bytes(const Link& link) const;

 private:
  const std::string bytes_;
  size_t sent_ = 0;
  std::shared_ptr<StreamShare> share_;  // null: not counted
};

class BesideReceiver {
 public:
  // Takes at most `most` bytes, which count in `share`.
  BesideReceiver(std::shared_ptr<StreamShare> share, size_t most)
      : share_(std::move(share)), most_(most) {}
  BesideReceiver(const BesideReceiver&) = delete;
  BesideReceiver& operator=(const BesideReceiver&) = delete;
  ~BesideReceiver() { Drop(); }

  // A frame of the peer's. INVALID_ARGUMENT, for which the caller closes the link, if it is empty,
  // has a flag, an argument or a deadline, or goes beyond the bound. OK if memory is short: see
  // kept().
  absl::Status Add(const FrameHeader& frame, const char* body);
  // Whether as many bytes have come as the bound says, kept or not.
  bool complete() const { return received_ == most_; }
  // RESOURCE_EXHAUSTED if memory was short: what had come was dropped, and so is all that comes.
  const absl::Status& kept() const { return kept_; }
  const std::string& bytes() const { return bytes_; }
  // The bytes of memory that count. bytes() takes no more, except a very short string.
  size_t room() const { return room_; }

 private:
  // Memory for `bytes` more. False if the share has none.
  bool MakeRoom(size_t bytes);
  void Drop();

  const std::shared_ptr<StreamShare> share_;
  const size_t most_;
  size_t received_ = 0;
  size_t room_ = 0;
  std::string bytes_;
  absl::Status kept_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_BESIDE_H_
