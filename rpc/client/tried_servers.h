// TriedServers: the connections that a call has had attempts on, so that the next attempt goes
// elsewhere, or stays where it was.
//
// Compares pointers to the earlier ones and never follows them: a connection may be gone, and
// another one may have its address, which then waits for its turn. The last one is kept. A value in
// the call's frame; one thread.

#ifndef VERBENA_RPC_CLIENT_TRIED_SERVERS_H_
#define VERBENA_RPC_CLIENT_TRIED_SERVERS_H_

#include <algorithm>
#include <array>
#include <cstddef>

#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/retry.h"

namespace verbena::internal {

class TriedServers {
 public:
  void Add(Connection& connection) {
    last_ = ConnectionUse(connection);
    if (size_ < connections_.size() && !Has(connection)) connections_[size_++] = &connection;
  }
  bool Has(const Connection& connection) const {
    const auto end = connections_.begin() + size_;
    return std::find(connections_.begin(), end, &connection) != end;
  }
  bool empty() const { return size_ == 0; }

  // Only the last server knows whether the call has run: the next attempts go there, too.
  void Stay() { stays_ = true; }
  // The connection to stay with; nullptr: the next attempt goes elsewhere.
  Connection* home() const { return stays_ && size_ > 0 ? &*last_ : nullptr; }

 private:
  std::array<const Connection*, RetryPolicy::kMaxAttempts> connections_{};
  size_t size_ = 0;
  ConnectionUse last_;
  bool stays_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_TRIED_SERVERS_H_
