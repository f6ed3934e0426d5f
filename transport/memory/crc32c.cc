#include "verbena/transport/memory/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace verbena::internal {
namespace {

// ISA-L takes an int for the length.
constexpr size_t kMaxPiece = size_t{1} << 30;

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
  // ISA-L's function is the bare shift register: the inversions before and after, which RFC 3720
  // asks for, are left to its caller. It wants a pointer to what it could write, and only reads.
  auto* next = const_cast<unsigned char*>(static_cast<const unsigned char*>(data));
  uint32_t shift_register = ~crc;
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kMaxPiece);
    shift_register = crc32_iscsi(next, static_cast<int>(piece), shift_register);
    next += piece;
    bytes -= piece;
  }
  return ~shift_register;
}

}  // namespace verbena::internal
