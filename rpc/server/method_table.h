// MethodTable: which handler a method's number on the wire means.
//
// The numbers go from 1, in the order in which services and methods were added; handshakes tell
// clients which methods have them. Built once before the server starts, then read by every executor
// without a lock. Two methods whose names hash to the same id, or one registered twice, are
// refused.

#ifndef VERBENA_RPC_SERVER_METHOD_TABLE_H_
#define VERBENA_RPC_SERVER_METHOD_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal {

class MethodTable {
 public:
  struct Entry {
    Service* service;
    const ServerMethod* method;
    int index;
    Streams streams;
  };

  // ALREADY_EXISTS names both methods. RESOURCE_EXHAUSTED: more than kMaxMethods.
  absl::Status Add(Service& service);

  // The index of the entry that a peer means by `number`, or -1.
  int IndexOf(uint16_t number) const {
    const int index = number - 1;
    return index < static_cast<int>(entries_.size()) ? index : -1;
  }
  const Entry& entry(int index) const { return entries_[index]; }
  size_t size() const { return entries_.size(); }
  // What handshakes tell of each method, in the order of their numbers.
  std::span<const OfferedMethod> offered() const { return offered_; }

 private:
  std::vector<Entry> entries_;
  std::vector<OfferedMethod> offered_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_METHOD_TABLE_H_
