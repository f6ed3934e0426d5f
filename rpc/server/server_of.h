// ServerOf: what a handler may learn about the server that its call came to, for services that tell
// of it (rpc/reflection.h).
//
// Users name none of this. On the thread of the call's executor, until the handler's Task ends.

#ifndef VERBENA_RPC_SERVER_SERVER_OF_H_
#define VERBENA_RPC_SERVER_SERVER_OF_H_

#include <vector>

#include "verbena/rpc/service.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

class VERBENA_EXPORT ServerOf {
 public:
  // All methods that the server serves, in the order of its services. They live as long as the
  // services.
  static std::vector<const ServerMethod*> Methods(const ServerContext& context);
  // Whether Server::Shutdown() has begun: from its first moment, also while the server still
  // takes calls, as ServerContext::shutting_down() is not.
  static bool Leaves(const ServerContext& context);
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVER_OF_H_
