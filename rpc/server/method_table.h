// MethodTable: which handler a method id means.
//
// Built once before the server starts, then read by every executor without a lock. Two methods
// whose names hash to the same id, or one registered twice, are refused.

#ifndef VERBENA_RPC_SERVER_METHOD_TABLE_H_
#define VERBENA_RPC_SERVER_METHOD_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/service.h"

namespace verbena::internal {

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
    size_t at = method_id & (places_.size() - 1);
    while (places_[at].index >= 0 && places_[at].id != method_id) {
      at = (at + 1) & (places_.size() - 1);
    }
    return places_[at].index;
  }
  const Entry& entry(int index) const { return entries_[index]; }
  size_t size() const { return entries_.size(); }

 private:
  struct Place {
    uint64_t id = 0;
    int index = -1;  // none
  };

  void Insert(size_t entry);

  std::vector<Entry> entries_;
  // A hash table with open addressing: an id lies at its own place, or at the next one that was
  // free. An id is a hash already, so its low bits are the place. The size is a power of two, and
  // at least half of the places are free.
  std::vector<Place> places_ = std::vector<Place>(2);
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_METHOD_TABLE_H_
