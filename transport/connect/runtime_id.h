// RuntimeId: 128 random bits that name a runtime to the servers it connects to.
//
// A runtime draws its id once, from the kernel's generator, and sends it in the Hello of each link.
// Servers bound what one client may take by this id. It is a claim, not an identity: a hostile
// client may draw a new id per link, so servers also bound each source address. Immutable.

#ifndef VERBENA_TRANSPORT_CONNECT_RUNTIME_ID_H_
#define VERBENA_TRANSPORT_CONNECT_RUNTIME_ID_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace verbena::internal {

struct RuntimeId {
  static constexpr size_t kBytes = 16;

  // Fresh random bits. Aborts if the kernel gives none.
  static RuntimeId Random();

  // 32 hexadecimal digits, for logs.
  std::string ToString() const;

  friend bool operator==(const RuntimeId&, const RuntimeId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RuntimeId& id) {
    return H::combine(std::move(state), id.bytes);
  }

  std::array<uint8_t, kBytes> bytes{};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RUNTIME_ID_H_
