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
  transfers += other.transfers;
  transfer_bytes += other.transfer_bytes;
  atomics += other.atomics;
  leases += other.leases;
  lease_waits += other.lease_waits;
  return *this;
}

EndpointStats& EndpointStats::operator+=(const EndpointStats& other) {
  links += other.links;
  links_opened += other.links_opened;
  links_refused += other.links_refused;
  links_lost += other.links_lost;
  receives_lost += other.receives_lost;
  stale_completions += other.stale_completions;
  receives_posted += other.receives_posted;
  credits_borrowed += other.credits_borrowed;
  traffic += other.traffic;
  return *this;
}

}  // namespace verbena
