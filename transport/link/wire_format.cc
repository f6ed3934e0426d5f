#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

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

}  // namespace verbena::internal
