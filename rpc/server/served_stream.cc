#include "verbena/rpc/server/served_stream.h"

#include <memory>
#include <utility>

#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace {

absl::Status LinkLost() { return absl::UnavailableError("the link was lost"); }

}  // namespace

absl::StatusOr<Buffer> RequestBuffers::TryAllocate(size_t bytes) {
  const Link* link = call_link_->link();
  if (link == nullptr) return LinkLost();
  QuotaHold hold(call_link_->client().requests(), bytes);
  if (!hold.TryTake()) {
    return absl::ResourceExhaustedError("the client's quota of payload memory is used up");
  }
  VERBENA_ASSIGN_OR_RETURN(Buffer buffer, link->endpoint().memory().receive().TryAllocate(bytes));
  buffer.HoldUntilFree(std::move(hold), call_link_->client().shared_from_this());
  return buffer;
}

Task<absl::StatusOr<Buffer>> RequestBuffers::Allocate(size_t bytes) {
  const Link* link = call_link_->link();
  if (link == nullptr) co_return LinkLost();
  const Endpoint& endpoint = link->endpoint();
  const std::shared_ptr<ServerClient> client = call_link_->client().shared_from_this();
  QuotaHold hold(client->requests(), bytes);
  VERBENA_CO_ASSIGN_OR_RETURN(
      Buffer buffer, co_await AllocateWithin(hold, endpoint, endpoint.memory().receive(), bytes,
                                             state_->ReceiveWait(deadline_, *call_link_)));
  buffer.HoldUntilFree(std::move(hold), client);
  co_return buffer;
}

}  // namespace verbena::internal
