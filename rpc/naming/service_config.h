// CheckServiceConfig: whether a ServiceConfig (policy.h) can be used. A pure function.

#ifndef VERBENA_RPC_NAMING_SERVICE_CONFIG_H_
#define VERBENA_RPC_NAMING_SERVICE_CONFIG_H_

#include "absl/status/status.h"
#include "verbena/rpc/policy.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

// INVALID_ARGUMENT if a field is out of its range; the message names the field and the range.
VERBENA_EXPORT absl::Status CheckServiceConfig(const ServiceConfig& config);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_SERVICE_CONFIG_H_
