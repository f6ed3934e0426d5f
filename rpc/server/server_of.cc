#include "verbena/rpc/server/server_of.h"

#include <atomic>
#include <vector>

#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/parts.h"
#include "verbena/rpc/server/state.h"

namespace verbena::internal {

std::vector<const ServerMethod*> ServerOf::Methods(const ServerContext& context) {
  const MethodTable& table = context.parts_.state.methods();
  std::vector<const ServerMethod*> methods;
  methods.reserve(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    methods.push_back(table.entry(static_cast<int>(i)).method);
  }
  return methods;
}

bool ServerOf::Leaves(const ServerContext& context) {
  const std::atomic<bool>* leaves = context.parts_.state.limits().leaves;
  return leaves != nullptr && leaves->load(std::memory_order_relaxed);
}

}  // namespace verbena::internal
