// The format of metrics that a scraper asks for by its Accept header.
//
// A pure function; any thread.

#ifndef VERBENA_RPC_ADMIN_ACCEPT_H_
#define VERBENA_RPC_ADMIN_ACCEPT_H_

#include <string_view>

#include "verbena/rpc/metrics.h"

namespace verbena::internal {

// OpenMetrics if `accept`, the values of all Accept headers with commas between them, names it, in
// version 1.0.0 or in any, with at least the weight (q) that it gives to text/plain. Otherwise, and
// where a header makes no sense, Prometheus's format, which every scraper reads.
MetricsFormat AcceptedFormat(std::string_view accept);

// The Content-Type of a format.
std::string_view ContentTypeOf(MetricsFormat format);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_ADMIN_ACCEPT_H_
