// The bounds of leases, and how memory that is leased is protected.

#ifndef VERBENA_TRANSPORT_LINK_LEASE_LIMITS_H_
#define VERBENA_TRANSPORT_LINK_LEASE_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/clock.h"

namespace verbena {

// How memory that is leased to a peer is protected from it.
enum class LeaseLevel : uint8_t {
  kAuto,    // kStrict if the device has memory windows that can be relied on, otherwise kRegion
  kStrict,  // each lease is a memory window of its own
  kRegion,  // whole regions are open to the peer: for devices without windows, or one trust domain
};

struct LeaseLimits {
  LeaseLevel level = LeaseLevel::kAuto;
  // Leases of one link at once, under kStrict; more wait. 16 to 4096.
  uint32_t windows_per_link = 64;
  // How long a peer may take to end a call that was given up, before its link is closed. 0: until
  // the next liveness check (one each half ping_interval).
  Duration grace = std::chrono::seconds(5);
  // Memory that waits for one peer to end such calls. While this much waits, no more is leased to
  // the peer. 0: nothing is ever leased.
  size_t quarantine_bytes = size_t{64} << 20;
  // Bytes of landings that one executor of a server grants to one client, over all its links, ahead
  // of requests. All clients together get at most half of memory.receive_bytes. 0 on either side:
  // no grants; the server READs payloads. The default is twice what a deep queue of payloads of 1
  // MiB has in flight. (start)
  size_t granted_bytes_per_client = size_t{32} << 20;
  // The largest payload for which such landings are granted; the server READs larger ones. 0 takes
  // the default from measurements: 16 KiB if memory is shared (1 MiB took 64 us written, 39 read),
  // and no bound otherwise. (start)
  size_t largest_grant_bytes = 0;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LEASE_LIMITS_H_
