#include "verbena/rpc/client/reply_buffers.h"

#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/client/client_session.h"
#include "verbena/rpc/client/landing_share.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace {

absl::Status DeviceLost() { return absl::UnavailableError("the stream's device was lost"); }

}  // namespace

void ReplyBuffers::Begin(const ClientSession& session, TimePoint deadline) {
  share_ = session.landing_share();
  endpoint_ = &session.endpoint();
  alive_ = endpoint_->alive();
  deadline_ = deadline;
}

absl::StatusOr<Buffer> ReplyBuffers::TryAllocate(size_t bytes) {
  if (alive_.expired()) return DeviceLost();
  return share_->TryAllocate(*endpoint_, bytes);
}

Task<absl::StatusOr<Buffer>> ReplyBuffers::Allocate(size_t bytes) {
  if (alive_.expired()) co_return DeviceLost();
  // The stream may be destroyed during the wait.
  const std::shared_ptr<LandingShare> share = share_;
  co_return co_await share->Allocate(*endpoint_, bytes, {.deadline = deadline_});
}

}  // namespace verbena::internal
