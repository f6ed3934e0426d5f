#include "verbena/rpc/shard/metrics_of.h"

#include "verbena/rpc/shard/metrics.h"

namespace verbena::internal {

std::vector<MethodReport> MethodReportsOf(const Runtime& runtime) {
  return MetricsCore::Of(runtime).Methods();
}

std::string MetricsTextOf(const Runtime& runtime, MetricsFormat format,
                          const RuntimeReport& report) {
  return MetricsCore::Of(runtime).Text(format, report);
}

}  // namespace verbena::internal
