// ConnectOrder: which of a process's devices a connection tries, and in which order.
//
// On one host the software device's shared memory comes first: it is faster than any NIC's
// loopback. Then come RDMA devices, then TCP. Between hosts shared memory comes last: it cannot
// reach another host, and its error says so.

#ifndef VERBENA_RPC_CLIENT_CONNECT_ORDER_H_
#define VERBENA_RPC_CLIENT_CONNECT_ORDER_H_

#include <cstddef>
#include <vector>

#include "verbena/transport/connect/link_parameters.h"

namespace verbena::internal {

// Indices into `kinds`, each once. Devices that are alike keep their order.
inline std::vector<size_t> ConnectOrder(const std::vector<LinkKind>& kinds, bool same_host) {
  const auto rank = [same_host](LinkKind kind) {
    if (kind == LinkKind::kSoft) return same_host ? 0 : 3;
    return kind == LinkKind::kTcp ? 2 : 1;
  };
  std::vector<size_t> order;
  for (int place = 0; place <= 3; ++place) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (rank(kinds[i]) == place) order.push_back(i);
    }
  }
  return order;
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CONNECT_ORDER_H_
