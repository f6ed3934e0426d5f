// ConnectOrder: which of a process's devices a connection tries, and in which order.
//
// On one host the software device comes first: its shared memory is faster than any NIC's loopback.
// Between hosts it comes last: it cannot reach another host, and its error says so.

#ifndef VERBENA_RPC_CLIENT_CONNECT_ORDER_H_
#define VERBENA_RPC_CLIENT_CONNECT_ORDER_H_

#include <cstddef>
#include <vector>

#include "verbena/transport/connect/link_parameters.h"

namespace verbena::internal {

// Indices into `kinds`, each once. Devices that are alike keep their order.
inline std::vector<size_t> ConnectOrder(const std::vector<LinkKind>& kinds, bool same_host) {
  std::vector<size_t> order;
  for (const bool soft : {same_host, !same_host}) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      if ((kinds[i] == LinkKind::kSoft) == soft) order.push_back(i);
    }
  }
  return order;
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CONNECT_ORDER_H_
