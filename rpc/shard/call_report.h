// MethodReport: what a runtime has counted of the calls of one method, added up over its executors;
// and TimeSlot, of which its times are made.
//
// Values and pure functions; any thread. MethodReportsOf() (rpc/shard/metrics_of.h) makes them.

#ifndef VERBENA_RPC_SHARD_CALL_REPORT_H_
#define VERBENA_RPC_SHARD_CALL_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "verbena/transport/base/export.h"

namespace verbena::internal {

// How many calls took at least `begin` and less than `end`, in seconds. Where the end is the begin,
// they took that or longer.
struct TimeSlot {
  double begin = 0;
  double end = 0;
  uint64_t count = 0;

  bool operator==(const TimeSlot&) const = default;
};

// The time that the fraction `q` of the calls did not exceed, in seconds; 0 if there are none.
// `slots` are in order. At most a tenth off if times are spread over their slots; an eighth if all
// are at one end of a slot, which is at most a fourth of its begin wide.
VERBENA_EXPORT double QuantileOf(const std::vector<TimeSlot>& slots, double q);

// The calls of `now` that `before`, an earlier report of the same method, does not have.
VERBENA_EXPORT std::vector<TimeSlot> SlotsSince(const std::vector<TimeSlot>& now,
                                                const std::vector<TimeSlot>& before);

VERBENA_EXPORT uint64_t CallsIn(const std::vector<TimeSlot>& slots);

// "780 ns", "12.3 µs", "3.10 ms" or "2.50 s": three digits.
VERBENA_EXPORT std::string TimeText(double seconds);

// One side's calls of one method.
struct MethodReport {
  std::string name = {};
  bool is_served = false;  // or made by this runtime
  uint64_t begun = 0;
  // By code, of those that ended otherwise than well: {"NOT_FOUND", 3}.
  std::vector<std::pair<std::string, uint64_t>> failed = {};
  // Of all calls that have ended, in order, without empty slots.
  std::vector<TimeSlot> times = {};

  uint64_t ended() const { return CallsIn(times); }
  uint64_t under_way() const { return begun > ended() ? begun - ended() : 0; }
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_CALL_REPORT_H_
