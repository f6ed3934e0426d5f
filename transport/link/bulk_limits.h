// BulkLimits: how payloads share a link with small calls. A part of LinkLimits.

#ifndef VERBENA_TRANSPORT_LINK_BULK_LIMITS_H_
#define VERBENA_TRANSPORT_LINK_BULK_LIMITS_H_

#include <cstdint>

namespace verbena {

namespace internal {

// READs and atomics outstanding on a link, in each direction; clamped to what both devices can do.
inline constexpr uint8_t kMaxReads = 16;

}  // namespace internal

// How payloads share a link with small calls. A SEND waits at most for the bytes that were posted
// ahead of it; the rest of a payload is posted later.
struct BulkLimits {
  // The most that one chain of WRs moves: 4096 to 2^30. 0 takes the default from measurements. If
  // the processor copies payloads: 256 KiB (128 KiB took a tenth of the bandwidth), which is then
  // also the most that all links of an endpoint move before the executor polls again. Otherwise: 64
  // KiB. The default is at most bytes_ahead. (start)
  uint32_t slice_bytes = 0;
  // Bytes of transfers that a link has posted and not completed: at least 4096, and at least
  // slice_bytes. Above bandwidth x delay of a link of 200 Gb/s (125 KB at 5 us), so that a device
  // never waits for the next slice. (start)
  uint32_t bytes_ahead = 256u << 10;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_BULK_LIMITS_H_
