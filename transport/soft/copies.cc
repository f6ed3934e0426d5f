#include "verbena/transport/soft/copies.h"

namespace verbena::internal {

CopiedBytes& CopiedBytes::operator+=(const CopiedBytes& other) {
  direct_write_bytes += other.direct_write_bytes;
  direct_read_bytes += other.direct_read_bytes;
  kernel_write_bytes += other.kernel_write_bytes;
  kernel_read_bytes += other.kernel_read_bytes;
  ring_bytes += other.ring_bytes;
  sent_bytes += other.sent_bytes;
  placed_bytes += other.placed_bytes;
  send_bytes += other.send_bytes;
  receive_bytes += other.receive_bytes;
  inline_bytes += other.inline_bytes;
  return *this;
}

CopiedBytes operator-(CopiedBytes later, const CopiedBytes& earlier) {
  later.direct_write_bytes -= earlier.direct_write_bytes;
  later.direct_read_bytes -= earlier.direct_read_bytes;
  later.kernel_write_bytes -= earlier.kernel_write_bytes;
  later.kernel_read_bytes -= earlier.kernel_read_bytes;
  later.ring_bytes -= earlier.ring_bytes;
  later.sent_bytes -= earlier.sent_bytes;
  later.placed_bytes -= earlier.placed_bytes;
  later.send_bytes -= earlier.send_bytes;
  later.receive_bytes -= earlier.receive_bytes;
  later.inline_bytes -= earlier.inline_bytes;
  return later;
}

}  // namespace verbena::internal
