#include "verbena/rpc/client/call_policies.h"

namespace verbena::internal {

CallPolicies::CallPolicies(const ServiceConfig& config, size_t executors) {
  for (const MethodConfig& method : config.methods) by_name_.emplace(method.name, &method);
  for (size_t i = 0; i < executors; ++i) accounts_.emplace_back(config.budget);
}

const MethodConfig* CallPolicies::Named(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const MethodConfig* CallPolicies::Of(const MethodDescriptor& method) const {
  const std::string_view name = method.full_name;
  if (const MethodConfig* own = Named(name)) return own;
  if (const MethodConfig* service = Named(name.substr(0, name.find('/')))) return service;
  return Named("");
}

RetryStats CallPolicies::stats() const {
  RetryStats stats;
  for (const RetryAccount& account : accounts_) account.AddTo(stats);
  return stats;
}

}  // namespace verbena::internal
