#include "verbena/transport/link/stats.h"

namespace verbena {

LinkStats& LinkStats::operator+=(const LinkStats& other) {
  sends += other.sends;
  frames_sent += other.frames_sent;
  bytes_sent += other.bytes_sent;
  credit_sends += other.credit_sends;
  doorbells += other.doorbells;
  receives += other.receives;
  frames_received += other.frames_received;
  bytes_received += other.bytes_received;
  credit_waits += other.credit_waits;
  slot_waits += other.slot_waits;
  recalls += other.recalls;
  return *this;
}

}  // namespace verbena
