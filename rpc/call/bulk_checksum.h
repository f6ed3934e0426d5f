// The checksum of what a call moves one-sided: CRC32C of its payload, then of its message.

#ifndef VERBENA_RPC_CALL_BULK_CHECKSUM_H_
#define VERBENA_RPC_CALL_BULK_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "verbena/rpc/payload.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/memory/crc32c.h"

namespace verbena::internal {

// Continues `checksum` with the bytes of a view; begin with 0.
inline uint32_t ExtendChecksum(uint32_t checksum, const BufferView& view) {
  return ExtendCrc32c(checksum, view.data(), view.size());
}

inline uint32_t ChecksumOf(const Payload& payload) {
  uint32_t checksum = 0;
  for (size_t i = 0; i < payload.part_count(); ++i) {
    checksum = ExtendChecksum(checksum, payload.part(i));
  }
  return checksum;
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_BULK_CHECKSUM_H_
