// The answer of a lookup as Asio takes it. A pure function.

#ifndef VERBENA_TRANSPORT_CONNECT_RESOLVED_ENDPOINTS_H_
#define VERBENA_TRANSPORT_CONNECT_RESOLVED_ENDPOINTS_H_

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {

inline std::vector<boost::asio::ip::tcp::endpoint> EndpointsOf(const NameAnswer& answer,
                                                               uint16_t port) {
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  for (SocketAddress address : answer.addresses) {
    address.set_port(port);
    boost::asio::ip::tcp::endpoint& endpoint = endpoints.emplace_back();
    std::memcpy(endpoint.data(), address.get(), address.size());
    endpoint.resize(address.size());
  }
  return endpoints;
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RESOLVED_ENDPOINTS_H_
