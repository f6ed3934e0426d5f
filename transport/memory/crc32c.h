// The checksum of payloads.
#ifndef VERBENA_TRANSPORT_MEMORY_CRC32C_H_
#define VERBENA_TRANSPORT_MEMORY_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace verbena::internal {

// Extends `crc`, the CRC32C (Castagnoli; RFC 3720, 12.1) of the bytes so far, by the `bytes` bytes
// at `data`. Begin with 0, the checksum of no bytes. Any thread; cannot fail.
//
//   uint32_t crc = 0;
//   for (const BufferView& view : views) crc = ExtendCrc32c(crc, view.data(), view.size());
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_CRC32C_H_
