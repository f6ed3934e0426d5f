// The open link of a runtime, for tests that close it or look at it.
//
// All functions run on the runtime's first executor. They find an open link there on one device,
// the first unless told otherwise, among the first LinkLimits::max_links links that were made.

#ifndef VERBENA_TESTS_RPC_OPEN_LINK_H_
#define VERBENA_TESTS_RPC_OPEN_LINK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/runtime.h"

namespace verbena::internal {

class Link;

// The open link over the runtime's device of that index; nullptr if there is none. Valid until the
// next await.
Link* OpenLinkOf(Runtime& runtime, size_t device = 0);

// Closes the link. NOT_FOUND if there is none.
absl::Status CloseLinkOf(Runtime& runtime, size_t device = 0);

// Link::peer_identity(); 0 if there is none.
uint64_t PeerIdentityOf(Runtime& runtime);

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_OPEN_LINK_H_
