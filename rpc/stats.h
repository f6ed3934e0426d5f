// DeviceStats, EndpointStats and LinkStats: counters of a runtime's links.
//
// Runtime returns them for each executor. ServerStats, the counters of a server, are in server.h.
// ExecutorStats are in executor.h.
//
//   EndpointStats stats = runtime->endpoint_stats(/*executor_index=*/0);
//   double frames_per_send = double(stats.traffic.frames_sent) / double(stats.traffic.sends);

#ifndef VERBENA_RPC_STATS_H_
#define VERBENA_RPC_STATS_H_

#include "verbena/transport/link/stats.h"  // IWYU pragma: export

#endif  // VERBENA_RPC_STATS_H_
