// Outliers: which servers of a set fail, or are slow, beside the others, and for how long they take
// no calls.
//
// Judging is a function of numbers and times, made once in each EjectionOptions::interval. A server
// that is ejected stays connected, and is readmitted by time alone; each further ejection lasts
// longer. A fault that most servers share ejects none of them, and at most a share of the set is
// ejected at once. Each balancer judges for itself. On its executor's thread.
//
//   std::vector<JudgedServer> servers = ...;   // those that calls may go to
//   if (JudgeServers(options, now, servers)) Rebuild();

#ifndef VERBENA_RPC_CLIENT_OUTLIERS_H_
#define VERBENA_RPC_CLIENT_OUTLIERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/rpc/balancing.h"
#include "verbena/rpc/client/call_tally.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

// The judgements on one server. A value.
struct OutlierRecord {
  CallTally before;       // at the last judgement
  uint64_t forgiven = 0;  // failures that no longer count as one after another
  uint32_t times = 0;     // ejections that are not forgotten yet
  bool ejected = false;
  TimePoint changed{};  // when it was readmitted, or an ejection forgotten
  TimePoint until{};    // while ejected
  std::string why;      // of the last ejection
};

struct JudgedServer {
  OutlierRecord* record;   // not null
  const CallTally* tally;  // not null
};

// A server is judged by its latency once as many of its calls were timed in an interval.
inline constexpr uint64_t kLeastTimed = 4;

// Returns whether any server was ejected or readmitted.
bool JudgeServers(const EjectionOptions& options, TimePoint now,
                  const std::vector<JudgedServer>& servers);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_OUTLIERS_H_
