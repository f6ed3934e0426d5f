#include "verbena/transport/link/wire_format.h"

#include <cstring>

namespace verbena {

const char* WireFaultName(WireFault fault) {
  switch (fault) {
    case WireFault::kNone:
      return "no fault";
    case WireFault::kTruncatedHeader:
      return "a SEND shorter than its header";
    case WireFault::kUnknownFlags:
      return "unknown flags or non-zero reserved bytes";
    case WireFault::kTruncatedFrame:
      return "a frame that runs past the end of its SEND";
    case WireFault::kUnknownKind:
      return "a frame of an unknown kind";
    case WireFault::kTrailingBytes:
      return "bytes after the last frame";
    case WireFault::kReserveWithFrames:
      return "frames in a SEND on a reserve credit";
  }
  return "an unknown fault";
}

FrameParser::FrameParser(const char* bytes, size_t size) : next_(bytes), end_(bytes + size) {
  if (size < sizeof(SendHeader)) {
    fault_ = WireFault::kTruncatedHeader;
    return;
  }
  std::memcpy(&header_, bytes, sizeof(header_));
  next_ += sizeof(header_);
  if ((header_.flags & ~kSendKnownFlags) != 0 ||
      (header_.reserved[0] | header_.reserved[1] | header_.reserved[2]) != 0) {
    fault_ = WireFault::kUnknownFlags;
    return;
  }
  if ((header_.flags & kSendSpendsReserve) != 0 && header_.frame_count != 0) {
    fault_ = WireFault::kReserveWithFrames;
    return;
  }
  frames_left_ = header_.frame_count;
}

bool FrameParser::Next() {
  if (fault_ != WireFault::kNone) return false;
  if (frames_left_ == 0) return next_ == end_ ? false : Fail(WireFault::kTrailingBytes);
  const auto left = static_cast<size_t>(end_ - next_);
  if (left < sizeof(FrameHeader)) return Fail(WireFault::kTruncatedFrame);
  std::memcpy(&frame_, next_, sizeof(frame_));
  // Compared before it is rounded up, so that no length can wrap around.
  if (frame_.body_bytes > left - sizeof(FrameHeader)) return Fail(WireFault::kTruncatedFrame);
  const size_t frame_bytes = FrameBytes(frame_.body_bytes);
  if (frame_bytes > left) return Fail(WireFault::kTruncatedFrame);
  if (frame_.kind < FrameKind::kRequest || frame_.kind > FrameKind::kReturn) {
    return Fail(WireFault::kUnknownKind);
  }
  const uint8_t allowed = frame_.kind <= FrameKind::kResponse ? kFrameHasBulk : 0;
  if ((frame_.flags & ~allowed) != 0) return Fail(WireFault::kUnknownFlags);
  body_ = next_ + sizeof(FrameHeader);
  next_ += frame_bytes;
  --frames_left_;
  return true;
}

}  // namespace verbena
