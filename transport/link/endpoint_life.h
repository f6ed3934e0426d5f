// EndpointLife: who may still refer to an endpoint, and how others learn that it is gone.
//
// Part of an Endpoint, which closes the gate as it ends. On the executor's thread; only the gate
// that gate() returns is safe from any thread.

#ifndef VERBENA_TRANSPORT_LINK_ENDPOINT_LIFE_H_
#define VERBENA_TRANSPORT_LINK_ENDPOINT_LIFE_H_

#include <memory>

#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

class EndpointLife {
 public:
  explicit EndpointLife(Executor& executor) : gate_(std::make_shared<ExecutorGate>(executor)) {}

  // Open as long as the endpoint lives. Asynchronous events of the device may still be on their way
  // when the endpoint is gone: they pass through the gate.
  const std::shared_ptr<ExecutorGate>& gate() const { return gate_; }
  // Expires with the endpoint.
  std::weak_ptr<const bool> alive() const { return alive_; }
  // Each holder of the result is a user.
  std::shared_ptr<const bool> Use() const { return users_; }
  bool in_use() const { return users_.use_count() > 1; }

 private:
  const std::shared_ptr<ExecutorGate> gate_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);
  const std::shared_ptr<const bool> users_ = std::make_shared<bool>(true);
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ENDPOINT_LIFE_H_
