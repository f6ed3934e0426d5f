// TriedServers: the connections that a call has had attempts on, so that the next one goes
// elsewhere.
//
// Compares pointers and never follows them: a connection may be gone, and another one may have its
// address, which then waits for its turn. A value in the call's frame; one thread.

#ifndef VERBENA_RPC_CLIENT_TRIED_SERVERS_H_
#define VERBENA_RPC_CLIENT_TRIED_SERVERS_H_

#include <algorithm>
#include <array>
#include <cstddef>

#include "verbena/rpc/retry.h"

namespace verbena::internal {

class Connection;

class TriedServers {
 public:
  void Add(const Connection& connection) {
    if (size_ < connections_.size() && !Has(connection)) connections_[size_++] = &connection;
  }
  bool Has(const Connection& connection) const {
    const auto end = connections_.begin() + size_;
    return std::find(connections_.begin(), end, &connection) != end;
  }
  bool empty() const { return size_ == 0; }

 private:
  std::array<const Connection*, RetryPolicy::kMaxAttempts> connections_{};
  size_t size_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_TRIED_SERVERS_H_
