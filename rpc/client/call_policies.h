// CallPolicies: a channel's ServiceConfig, looked up by method, and the account of each executor.
//
// Owned by the channel, which has none without a ServiceConfig. The lookup is for any thread.

#ifndef VERBENA_RPC_CLIENT_CALL_POLICIES_H_
#define VERBENA_RPC_CLIENT_CALL_POLICIES_H_

#include <cstddef>
#include <deque>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "verbena/rpc/client/retry_account.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/retry.h"
#include "verbena/rpc/service_config.h"

namespace verbena::internal {

class CallPolicies {
 public:
  // `config`, which was checked, outlives it.
  CallPolicies(const ServiceConfig& config, size_t executors);

  // The policies of `method`; nullptr if it has none.
  const MethodConfig* Of(const MethodDescriptor& method) const;
  // By the executor's number, on its thread.
  RetryAccount& account(size_t executor) { return accounts_[executor]; }
  // The sum of all executors.
  RetryStats stats() const;

 private:
  const MethodConfig* Named(std::string_view name) const;

  absl::flat_hash_map<std::string_view, const MethodConfig*> by_name_;
  std::deque<RetryAccount> accounts_;  // which cannot move
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CALL_POLICIES_H_
