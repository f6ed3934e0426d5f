// OpenLinkOf: the open link of a runtime, for tests that close it or look at it.

#ifndef VERBENA_TESTS_RPC_OPEN_LINK_H_
#define VERBENA_TESTS_RPC_OPEN_LINK_H_

#include "verbena/rpc/runtime.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

// An open link on the runtime's first executor and device; nullptr if there is none. Finds only the
// first LinkLimits::max_links links that were made there. On that executor; the link is valid until
// the next await.
Link* OpenLinkOf(Runtime& runtime);

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_OPEN_LINK_H_
