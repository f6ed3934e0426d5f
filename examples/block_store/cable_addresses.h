// CableAddresses: the two IPv4 addresses of a cable between this process's network and another one,
// out of the ranges that are kept for documentation and for benchmarks (RFC 5737, RFC 2544).
//
// They lie in a network of four addresses that no address of this host covers, and none of its
// routes but a default one: the host loses its way to nobody. Of the processes in one network
// namespace, one at most has a network, until it destroys the object: it holds an abstract Unix
// socket of that name (unix(7)). One thread.
//
//   VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<CableAddresses> cable, CableAddresses::Claim());
//   fmt::print("ip address add {}/30 dev …", cable->near());

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_CABLE_ADDRESSES_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_CABLE_ADDRESSES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace block_store {

// The IPv4 addresses from `first` to `last`, in the host's byte order.
struct AddressRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

class CableAddresses {
 public:
  // Takes the first network that is free. Fails with NOT_FOUND if none is, and with an errno's
  // Status if the kernel does not tell the host's addresses or routes.
  static absl::StatusOr<std::unique_ptr<CableAddresses>> Claim();
  CableAddresses(const CableAddresses&) = delete;
  CableAddresses& operator=(const CableAddresses&) = delete;
  ~CableAddresses();

  // "192.0.2.1" and "192.0.2.2", for instance. Both have prefixes of 30 bits.
  std::string near() const;
  std::string far() const;

 private:
  CableAddresses(uint32_t network, int claim) : network_(network), claim_(claim) {}

  const uint32_t network_;
  const int claim_;
};

// The first network of four addresses in one of the ranges above that is apart from all of `taken`.
std::optional<uint32_t> FreeNetwork(std::span<const AddressRange> taken);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_CABLE_ADDRESSES_H_
