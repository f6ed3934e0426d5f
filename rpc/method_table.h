// MethodTable: which handler a method id means.
//
// Built once before the server starts, then read by every executor without a lock. Two methods
// whose names hash to the same id, or one registered twice, are refused.

#ifndef VERBENA_RPC_METHOD_TABLE_H_
#define VERBENA_RPC_METHOD_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "verbena/rpc/service.h"

namespace verbena {

class MethodTable {
 public:
  struct Entry {
    Service* service;
    const ServerMethod* method;
  };

  // ALREADY_EXISTS names both methods.
  absl::Status Add(Service& service);

  // The index of the entry, or -1.
  int Find(uint64_t method_id) const {
    auto found = index_.find(method_id);
    return found == index_.end() ? -1 : found->second;
  }
  const Entry& entry(int index) const { return entries_[index]; }
  size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
  absl::flat_hash_map<uint64_t, int> index_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_METHOD_TABLE_H_
