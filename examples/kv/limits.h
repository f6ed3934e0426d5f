// The bounds of the key-value store, and how they follow from each other. kv.proto tells them to
// users.

#ifndef VERBENA_EXAMPLES_KV_LIMITS_H_
#define VERBENA_EXAMPLES_KV_LIMITS_H_

#include <cstddef>

namespace kv {

inline constexpr size_t kMaxKeyBytes = 128;
// Values travel as payloads: those of at most 4 KiB within a frame, larger ones one-sided.
inline constexpr size_t kMaxValueBytes = size_t{1} << 20;
// The most records of one write.
inline constexpr size_t kMaxRecords = 64;

// A page of Scan that fits one eager frame: 4096 bytes, less 48 for its headers. A page exceeds it
// only if its one entry does, and then travels as large messages do.
inline constexpr size_t kMaxMessageBytes = 4048;

// The most bytes that a page of Scan holds, unless its first entry alone is larger. Each entry
// counts kPageEntryBytes besides its key and value, which is at least as much as protobuf adds to
// it.
inline constexpr size_t kMaxPageBytes = 3840;
inline constexpr size_t kPageEntryBytes = 16;

// Besides its key and value, an entry counts this much against the memory of a MemoryStore: about
// as much as the map and the allocator take for it.
inline constexpr size_t kEntryBytes = 128;

// The tag and the length of a protobuf field below 16 KiB.
inline constexpr size_t kFieldBytes = 3;

static_assert(kPageEntryBytes >= 3 * kFieldBytes, "an entry, its key and its value");
static_assert(kMaxPageBytes + kMaxKeyBytes + kFieldBytes <= kMaxMessageBytes,
              "a full page and its next_key fit a reply");

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_LIMITS_H_
