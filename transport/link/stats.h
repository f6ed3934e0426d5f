// LinkStats and EndpointStats: counters of links.
//
// Values, copied on the executor's thread. They count SENDs, what these carried, and why frames
// waited. This header includes none of libibverbs.
//
//   EndpointStats stats = runtime->endpoint_stats(0);
//   double frames_per_send = double(stats.traffic.frames_sent) / double(stats.traffic.sends);

#ifndef VERBENA_TRANSPORT_LINK_STATS_H_
#define VERBENA_TRANSPORT_LINK_STATS_H_

#include <cstdint>
#include <string>

#include "verbena/transport/base/export.h"

namespace verbena {

// Counters since a link began, or their sums over several links.
struct VERBENA_EXPORT LinkStats {
  uint64_t sends = 0;
  uint64_t frames_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t credit_sends = 0;  // SENDs without frames
  uint64_t doorbells = 0;
  uint64_t receives = 0;
  uint64_t frames_received = 0;
  uint64_t bytes_received = 0;
  uint64_t credit_waits = 0;  // frames that waited for the peer's credits
  uint64_t slot_waits = 0;    // frames that waited for send queue slots or send buffers
  uint64_t recalls = 0;
  uint64_t transfers = 0;  // payloads moved one-sided, or still on their way
  uint64_t transfer_bytes = 0;
  uint64_t atomics = 0;      // operations on the peer's memory, or still on their way
  uint64_t leases = 0;       // open for the peer
  uint64_t lease_waits = 0;  // calls that waited for a memory window

  LinkStats& operator+=(const LinkStats& other);
};

struct VERBENA_EXPORT EndpointStats {
  uint32_t links = 0;
  uint64_t links_opened = 0;
  uint64_t links_refused = 0;
  uint64_t links_lost = 0;         // closed for a reason other than Shutdown()
  uint64_t stale_completions = 0;  // of links that are gone
  uint32_t receives_posted = 0;
  uint64_t receives_lost = 0;  // dropped by the device with a queue pair, and found again
  uint32_t credits_borrowed = 0;
  LinkStats traffic;  // all links, those that are gone included

  EndpointStats& operator+=(const EndpointStats& other);
};

// Statistics of one executor's links on one device.
struct DeviceStats {
  std::string device;
  EndpointStats endpoint;
  // The network: "soft" (shared memory), "InfiniBand", "RoCE v2", "RoCE v1", "iWARP" or "tcp".
  std::string kind;
  // The peer, and the reason why the executor's last connection that could not take the device, or
  // took one that comes before it, passed it over. Empty if none did.
  std::string passed_over;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_STATS_H_
