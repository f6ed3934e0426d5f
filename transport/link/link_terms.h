// LinkTerms: what both ends of a link know of it since their handshake. Fixed while it is open.

#ifndef VERBENA_TRANSPORT_LINK_LINK_TERMS_H_
#define VERBENA_TRANSPORT_LINK_LINK_TERMS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::internal {

struct LinkTerms {
  std::string peer;       // by the name that its bootstrap connection has
  uint64_t features = 0;  // that both have
  // Numbers that tell this end, and the peer's, from every other: the queue pair's number, which is
  // reused late, and its first packet number, which is random.
  uint64_t identity = 0;
  uint64_t peer_identity = 0;
  // On a client's side: the ids of the server's methods, in the order of their numbers.
  std::vector<uint64_t> methods;
  // On a client's side: the server's incarnation; 0 if it told none.
  uint64_t incarnation = 0;

  static uint64_t IdentityOf(uint32_t qpn, uint32_t psn) { return uint64_t{qpn} << 24 | psn; }
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_TERMS_H_
