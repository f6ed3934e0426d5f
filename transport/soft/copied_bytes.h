// CopiedBytes: how many payload bytes a soft device copied, by the way they took.
//
// Shows that a payload was moved by the wire's one copy and by nothing else: over shared memory, a
// WRITE of N bytes between shared arenas adds N to the initiator's direct_write_bytes, and to no
// other count of either device. A value; only ever grows. Free of verbs.
//
//   const CopiedBytes before = device->copied_bytes();
//   …
//   const CopiedBytes copied = device->copied_bytes() - before;

#ifndef VERBENA_TRANSPORT_SOFT_COPIED_BYTES_H_
#define VERBENA_TRANSPORT_SOFT_COPIED_BYTES_H_

#include <cstdint>

namespace verbena::internal {

struct CopiedBytes {
  // By this device as the initiator, between its own memory and a target's that is mapped here.
  uint64_t direct_write_bytes = 0;
  uint64_t direct_read_bytes = 0;
  // Likewise, with memory that is not mapped: process_vm_writev and process_vm_readv.
  uint64_t kernel_write_bytes = 0;
  uint64_t kernel_read_bytes = 0;
  // For WRITEs and READs that the target executes: into or out of a ring. Each device counts a byte
  // once.
  uint64_t ring_bytes = 0;
  // For WRITEs and READs over TCP, past the ring: by the kernel, from their memory into a socket,
  // and from a socket into their memory.
  uint64_t sent_bytes = 0;
  uint64_t placed_bytes = 0;
  // For SENDs: into a ring, and out of one into a receive.
  uint64_t send_bytes = 0;
  uint64_t receive_bytes = 0;
  // For inline WRs that could not be launched at once, or were refused: kept aside until they are
  // launched.
  uint64_t inline_bytes = 0;

  CopiedBytes& operator+=(const CopiedBytes& other);
  friend CopiedBytes operator-(CopiedBytes later, const CopiedBytes& earlier);
  friend bool operator==(const CopiedBytes&, const CopiedBytes&) = default;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_SOFT_COPIED_BYTES_H_
