// MethodReportsOf() and MetricsTextOf(): what a runtime has counted, for the pages of rpc/admin.
//
// No executor is asked: counts of calls are those of now. Any thread.
//
//   for (const MethodReport& method : MethodReportsOf(runtime)) {
//     … method.name, QuantileOf(method.times, 0.99)
//   }

#ifndef VERBENA_RPC_SHARD_METRICS_OF_H_
#define VERBENA_RPC_SHARD_METRICS_OF_H_

#include <string>
#include <vector>

#include "verbena/rpc/metrics.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/call_report.h"
#include "verbena/rpc/shard/report.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

// The methods that have had a call, served ones first, then by name. None if calls are not counted
// (RuntimeOptions::metrics).
VERBENA_EXPORT std::vector<MethodReport> MethodReportsOf(const Runtime& runtime);

// As Metrics::Text(), with these reports of the executors.
VERBENA_EXPORT std::string MetricsTextOf(const Runtime& runtime, MetricsFormat format,
                                         const RuntimeReport& report);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_METRICS_OF_H_
